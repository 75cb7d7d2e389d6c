/* Methods whose calls are counted and timed. */
#ifndef HPCCOLL_PROFILED_H
#define HPCCOLL_PROFILED_H

#include "_python.h"

extern PyTypeObject CallRowsType, SeenType, WatchedMethodType;

int prepare_watching(void);

#endif
