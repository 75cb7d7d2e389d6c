/* Actions of the interpreter that record events. */
#ifndef HPCCOLL_NOTES_H
#define HPCCOLL_NOTES_H

#include "_python.h"

extern PyTypeObject NoteType;

PyObject *note_opening(PyObject *module, PyObject *args);
PyObject *note_closing(PyObject *module, PyObject *args);
PyObject *note_phase(PyObject *module, PyObject *args);
PyObject *note_amid(PyObject *module, PyObject *args);

#endif
