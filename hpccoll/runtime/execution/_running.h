/* Interpreter of compiled plans, and the state of a run. */
#ifndef HPCCOLL_RUNNING_H
#define HPCCOLL_RUNNING_H

#include "_plan.h"

/* Results of a run. */
enum { DONE, WAITING, ELSEWHERE, REMOTE };

/* A message for which there was no place, or, if `announced`, that its receiver has not read. */
typedef struct {
    const int64_t *step;
    int64_t number;
    int announced;
} Unsent;

typedef struct {
    char *base[BASES];
    Py_ssize_t at;
    Py_ssize_t unsent_count;
    Unsent *unsent;
    int detached;           /* its thread has released the GIL */
    int in_place;           /* the message in use is in registered memory of its sender */
    const int64_t *awaited; /* the instruction whose wait has timed out; it began at `since` */
    int64_t since;
} State;

int advance(CompiledPlan *plan, State *state, int64_t timeout_us);

#endif
