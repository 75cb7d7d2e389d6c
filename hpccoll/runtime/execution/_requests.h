/* Requests of compiled plans. */
#ifndef HPCCOLL_REQUESTS_H
#define HPCCOLL_REQUESTS_H

#include "_method.h"

extern PyTypeObject TokenType, RequestQueueType, CompiledRunType, BeginType;

int prepare_requests(void);
PyObject *begin_call(PyObject *target, char *in, char *out, PyObject *buffers);
PyObject *set_progress(PyObject *module, PyObject *args);
PyObject *spare_token(PyObject *module, PyObject *none);

/* Methods of requests. */
PyObject *request_start(Recognised *self, PyObject *const *args, size_t flags, PyObject *names);
PyObject *request_wait(Recognised *self, PyObject *const *args, size_t flags, PyObject *names);
PyObject *request_test(Recognised *self, PyObject *const *args, size_t flags, PyObject *names);

#endif
