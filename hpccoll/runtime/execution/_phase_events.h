/* Actions of the interpreter that record events. */
#ifndef HPCCOLL_PHASE_EVENTS_H
#define HPCCOLL_PHASE_EVENTS_H

#include "_python.h"

extern PyTypeObject NoteType;

PyObject *note_opening(PyObject *module, PyObject *args);
PyObject *note_closing(PyObject *module, PyObject *args);
PyObject *note_moments(PyObject *module, PyObject *args);
PyObject *note_amid(PyObject *module, PyObject *args);

#endif
