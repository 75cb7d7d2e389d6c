/* Runs of compiled plans: to the end in one call, or as an object that stops where a message is
 * missing. */
#ifndef HPCCOLL_RUN_H
#define HPCCOLL_RUN_H

#include "_running.h"

/* Microseconds of a wait before Python handles it. */
#define PATIENCE 1000
/* The same with other pending operations, which need progress too. */
#define SLICE 50

typedef struct {
    PyObject_HEAD
    CompiledPlan *plan;
    State state;
    PyObject *buffers;
} Run;

extern PyTypeObject RunType;

int may_sleep_again(const CompiledPlan *plan, int naps, int own);
int play(CompiledPlan *plan, char *in, char *out, PyObject *buffers);
Run *new_run(CompiledPlan *plan, char *in, char *out, PyObject *buffers);
PyObject *set_library_progress(PyObject *module, PyObject *function);

#endif
