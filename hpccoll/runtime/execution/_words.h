/* A word that several processes or threads read and write. */
#ifndef HPCCOLL_WORDS_H
#define HPCCOLL_WORDS_H

#include "_python.h" /* first: it asks for all of POSIX */
#include <stdatomic.h>

typedef _Atomic int64_t Word;

#endif
