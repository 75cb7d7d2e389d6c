/* Compiled executor: runs compiled plans, caches calls, and implements their requests.
 *
 * A compiled plan is one rank's lowered program as a flat array of instructions (compiled_plan.py
 * makes and reads them). The executor implements the instructions, and the words that announce
 * messages in the channels of shared memory (hpccoll/transport/shm/channels.py). It does not depend
 * on MPI or on algorithms. Its files, each of which uses only those before it:
 *
 *     _clock.h, _words.h, _events, _call_log, _call_guard, _channels.h
 *     _plan             instructions, and their checks: none are needed while a plan runs
 *     _running          runs the instructions, without Python
 *     _pending          the list of pending operations
 *     _run              Run: a plan in progress, which stops at a missing message and resumes there
 *     _compiled_plan    CompiledPlan, Counters: a plan runs on any arrays of the right sizes
 *     _operations.h, _background
 *                       operations of requests, and the thread that progresses them
 *     _requests         CompiledRun: a run that one call starts and another one completes
 *     _arguments        reads the arguments of calls
 *     _any_size         AnySize: calls of one form, with a plan whose operands follow from the size
 *     _recognition      Calls: the cache of a communicator, from form, size and type of a call to a
 *                       plan or the native method; Recognised: a method that looks up Calls first
 *     _conversions      Numbers: allreduce of Python numbers
 *     _shortcuts        other methods in C that fall back to Python
 *     _notes            Note: an action of the interpreter that records an event
 *     _finalize         checks during MPI_Finalize at exit that no process was killed
 *     _module           the module: its functions, types and constants
 */
#define IMPORTS_NUMPY
#include "_any_size.h"
#include "_arguments.h"
#include "_background.h"
#include "_call_guard.h"
#include "_call_log.h"
#include "_compiled_plan.h"
#include "_conversions.h"
#include "_events.h"
#include "_finalize.h"
#include "_notes.h"
#include "_recognition.h"
#include "_requests.h"
#include "_run.h"
#include "_shortcuts.h"

static PyMethodDef functions[] = {
    {"opening", note_opening, METH_VARARGS, "Return a callback that records the start of a call."},
    {"closing", note_closing, METH_VARARGS,
     "Return a callback that records the end of the last call."},
    {"phase", note_phase, METH_VARARGS, "Return a callback that records the start of an activity."},
    {"amid", note_amid, METH_VARARGS,
     "Return a callback that calls a function and records its activity."},
    {"set_ring", set_ring, METH_VARARGS, "Set the ring of events, and its sums."},
    {"record_event", (PyCFunction)(void (*)(void))record_event, METH_FASTCALL,
     "Record an event in the ring."},
    {"record_call", (PyCFunction)(void (*)(void))record_call, METH_FASTCALL,
     "Record a call in the ring and its sums."},
    {"hash_of_amount", hash_of_amount, METH_VARARGS,
     "Return the call_hash of a call from that of its form and its amount of data."},
    {"has_loop", has_loop, METH_VARARGS,
     "Return whether a ufunc has a loop for two operands and a result of a type."},
    {"set_in_place", set_in_place, METH_O, "Set the object that means in place."},
    {"set_library_progress", set_library_progress, METH_O,
     "Set the function that lets the MPI library progress its own messages."},
    {"set_refusal", set_refusal, METH_O,
     "Set the function that raises the error of concurrent calls."},
    {"set_progress", set_progress, METH_VARARGS,
     "Set the progress function, the class of tokens, and the offset of a request's handle."},
    {"spare_token", spare_token, METH_NOARGS,
     "Return a token that is not lent any more; None for none."},
    {"stop_background", stop_background, METH_NOARGS, "Stop the thread that progresses plans."},
    {"set_operators", set_operators, METH_VARARGS,
     "Set the operators sum, product, maximum and minimum."},
    {"check_at_exit", check_at_exit, METH_VARARGS,
     "Check, while MPI_Finalize runs at the exit, that no process has been killed."},
    {"shortcut", shortcut, METH_VARARGS, "Return a method in C with a fallback in Python."},
    {NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_executor",
                                    .m_doc = "The compiled executor.", .m_size = -1,
                                    .m_methods = functions};

PyMODINIT_FUNC PyInit__executor(void)
{
    import_array();
    import_umath();
    static Word word;
    if (!atomic_is_lock_free(&word)) {
        PyErr_SetString(PyExc_ImportError, "64-bit atomics are not lock-free");
        return NULL;
    }
    PyObject *self = PyModule_Create(&module);
    static struct {
        const char *name;
        PyTypeObject *type;
    } types[] = {{"Counters", &CountersType},
                 {"CompiledPlan", &CompiledPlanType},
                 {"Run", &RunType},
                 {"Calls", &CallsType},
                 {"Recognised", &RecognisedType},
                 {"AnySize", &AnySizeType},
                 {"Token", &TokenType},
                 {"RequestQueue", &RequestQueueType},
                 {"CompiledRun", &CompiledRunType},
                 {"Begin", &BeginType},
                 {"Numbers", &NumbersType},
                 {"Noted", &NotedType},
                 {"CallGuard", &CallGuardType},
                 {"Note", &NoteType}};
    static struct {
        const char *name;
        long value;
    } numbers[] = {{"PLACES", PLACES},
                   {"SMALL", SMALL},
                   {"SIZE_BITS", SIZE_BITS},
                   {"WIDTH", WIDTH},
                   {"OFFSET_BITS", OFFSET_BITS},
                   {"NUMBER", NUMBER},
                   {"INSIDE", INSIDE},
                   {"CHECK", CHECK},
                   {"ALARM", ALARM},
                   {"CALLS", CALLS},
                   {"REMEMBERED", REMEMBERED},
                   {"DONE", DONE},
                   {"WAITING", WAITING},
                   {"ELSEWHERE", ELSEWHERE},
                   {"REMOTE", REMOTE},
                   {"OPERATIONS", OPERATIONS},
                   {"BASES", BASES}};
    if (self == NULL || prepare_arguments() < 0 || prepare_recognition() < 0
        || prepare_requests() < 0 || prepare_numbers() < 0) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyType_Ready(types[i].type) < 0
            || PyModule_AddObjectRef(self, types[i].name, (PyObject *)types[i].type) < 0) {
            return NULL;
        }
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (PyModule_AddIntConstant(self, numbers[i].name, numbers[i].value) < 0) {
            return NULL;
        }
    }
    return self;
}
