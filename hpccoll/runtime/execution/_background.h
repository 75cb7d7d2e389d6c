/* Native thread that progresses operations, and the lock of their queues. */
#ifndef HPCCOLL_BACKGROUND_H
#define HPCCOLL_BACKGROUND_H

#include "_operations.h"

/* All of these need the GIL. */
int prepare_background(void);
int post_operation(CompiledRun *operation);
int enter_queue(RequestQueue *queue, PyObject *operation);
void leave_queue(RequestQueue *queue, PyObject *operation);
void break_queue(RequestQueue *queue);
void withdraw_operation(CompiledRun *operation);
Turn first_operation(RequestQueue *queue);
int thread_begins(const CompiledRun *operation);
void resume(int more);
PyObject *stop_background(PyObject *module, PyObject *none);

#endif
