/* Native thread that progresses compiled plans of requests without the GIL.
 *
 *     listed    pending operations that a thread may progress
 *     turns     the lock of that list and of the queues; its holder never blocks
 *
 * It only runs plans as far as possible and marks completed operations. A thread with the GIL then
 * notifies Python and MPI. Like all threads it claims an operation before it runs it (`busy`); the
 * removal of an operation waits until it is released. Without progress it sleeps, with increasing
 * intervals. One process has one such thread.
 *
 * Their rank starts and completes most short operations within a microsecond, and must not compete
 * with the thread for them: the thread runs only operations that it finds a second time.
 */
#include "_background.h"
#include "_wait.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#ifdef __APPLE__ /* its condition variables have no other clock */
#define CLOCK CLOCK_REALTIME
#else
#define CLOCK CLOCK_MONOTONIC
#endif
/* Nanoseconds of sleep between two polls: at first, and without progress. */
#define SHORTEST 20000
#define LONGEST 1000000
/* Nanoseconds after progress in which it polls and yields, if every rank has its own core: the peer
 * may be about to make progress, too. */
#define EAGER 50000
/* Nanoseconds without operations after which it sleeps until it is woken. */
#define LINGER 100000000

static pthread_mutex_t turns = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static pthread_t thread;
/* The thread runs; it is disabled or failed to start; it sleeps; it sleeps until it is woken. */
static int started, stopped, sleeping, lazy;
/* Threads of this process in the first millisecond of a `Wait`: they progress everything. */
static _Atomic int waiting;
static CompiledRun **listed;
static Py_ssize_t listed_count, listed_room;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* ---- queues ---------------------------------------------------------------------------------- */

/* Return the first pending operation of a queue; None after a failure; with the lock. */
static Turn first_entry(const RequestQueue *queue)
{
    Turn none = {NULL, NULL}, blocked = {Py_None, NULL};
    if (queue->broken) {
        return blocked;
    }
    for (Py_ssize_t i = 0; i < queue->count; i++) {
        if (queue->entries[i].compiled == NULL || !has_ended(queue->entries[i].compiled)) {
            return queue->entries[i];
        }
    }
    return none;
}

Turn first_operation(RequestQueue *queue)
{
    pthread_mutex_lock(&turns);
    Turn first = first_entry(queue);
    pthread_mutex_unlock(&turns);
    return first;
}

static int put_into_queue(RequestQueue *queue, PyObject *operation, CompiledRun *compiled)
{
    if (queue->count == queue->room) {
        Py_ssize_t room = 2 * queue->room + 8;
        Turn *entries = PyMem_RawRealloc(queue->entries, room * sizeof(Turn));
        if (entries == NULL) {
            return -1;
        }
        queue->entries = entries;
        queue->room = room;
    }
    Turn last = {Py_NewRef(operation), compiled};
    queue->entries[queue->count++] = last;
    return 0;
}

static void remove_from_queue(RequestQueue *queue, PyObject *operation)
{
    for (Py_ssize_t i = 0; i < queue->count; i++) {
        if (queue->entries[i].operation == operation) {
            memmove(queue->entries + i, queue->entries + i + 1,
                    (--queue->count - i) * sizeof(Turn));
            Py_DECREF(operation); /* the caller has a reference, too */
            return;
        }
    }
}

int enter_queue(RequestQueue *queue, PyObject *operation)
{
    pthread_mutex_lock(&turns);
    int failed = put_into_queue(queue, operation, NULL);
    pthread_mutex_unlock(&turns);
    if (failed) {
        PyErr_NoMemory();
    }
    return failed;
}

void leave_queue(RequestQueue *queue, PyObject *operation)
{
    pthread_mutex_lock(&turns);
    remove_from_queue(queue, operation);
    pthread_mutex_unlock(&turns);
}

/* Mark a queue as failed: other ranks would take messages of the next operation for those of the
 * failed one. */
void break_queue(RequestQueue *queue)
{
    pthread_mutex_lock(&turns);
    queue->broken = 1;
    pthread_mutex_unlock(&turns);
}

/* ---- the thread ------------------------------------------------------------------------------ */

enum { STILL, MOVED, MOVED_MUCH };

/* Progress all listed operations once; with the lock, which is released meanwhile. */
static int pass(void)
{
    int moved = STILL;
    RequestQueue *stuck =
        NULL; /* of this pass: operations behind the first need not search for it */
    for (Py_ssize_t i = 0;
         i < listed_count && !stopped && !atomic_load_explicit(&waiting, memory_order_relaxed);
         i++) {
        CompiledRun *operation = listed[i];
        if (!operation->seen_once) {
            operation->seen_once = 1;
            continue;
        }
        RequestQueue *queue = operation->queue;
        if (queue != NULL) {
            if (queue == stuck) {
                continue;
            }
            stuck = queue;
            operation = first_entry(queue).compiled;
        }
        if (operation == NULL || has_ended(operation) || !claim(operation, RUNNING)) {
            continue;
        }
        pthread_mutex_unlock(&turns);
        State *state = &operation->run->state;
        Py_ssize_t at = state->at;
        int found = advance(operation->run->plan, state, 0);
        if (found == DONE || state->at != at) {
            moved = operation->is_long || moved == MOVED_MUCH ? MOVED_MUCH : MOVED;
        }
        if (found == DONE) {
            atomic_store_explicit(&operation->ended, 1, memory_order_release);
            stuck = NULL;
        }
        release(operation);
        pthread_mutex_lock(&turns);
    }
    return moved;
}

static void *work(void *Py_UNUSED(argument))
{
    int64_t pause = LONGEST, last = now(), eager = 0;
#ifdef __linux__
    prctl(PR_SET_TIMERSLACK, 1UL);
    prctl(PR_SET_NAME, "hpccoll plans");
#endif
    pthread_mutex_lock(&turns);
    while (!stopped) {
        int moved = pass();
        int64_t time = now();
        pause = moved ? SHORTEST : 2 * pause < LONGEST ? 2 * pause : LONGEST;
        if (listed_count) {
            last = time;
        }
        if (stopped) {
            break;
        }
        if (moved == MOVED_MUCH) {
            eager = time + EAGER;
        }
        if (time < eager && listed_count && listed[0]->run->plan->spins
            && !atomic_load_explicit(&waiting, memory_order_relaxed)) {
            pthread_mutex_unlock(&turns);
            sched_yield();
            pthread_mutex_lock(&turns);
            continue;
        }
        sleeping = 1;
        if (time - last > LINGER) {
            lazy = 1;
            pthread_cond_wait(&changed, &turns);
            lazy = 0;
            last = now();
        }
        else {
            struct timespec end = {(time + pause) / 1000000000, (time + pause) % 1000000000};
            if (pthread_cond_timedwait(&changed, &turns, &end) == 0) {
                pause = SHORTEST / 2;
            }
        }
        sleeping = 0;
    }
    pthread_mutex_unlock(&turns);
    return NULL;
}

/* Start the thread; with the lock. */
static void start(void)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        sigdelset(&others, own[i]); /* if blocked, a fault of this thread would not be reported */
    }
    pthread_sigmask(SIG_SETMASK, &others, &before); /* only Python threads handle signals */
    started = pthread_create(&thread, NULL, work, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    stopped = !started;
}

/* Start an operation: add it to its queue and to the list of the thread; -1 on failure. */
int post_operation(CompiledRun *operation)
{
    int failed = 0;
    pthread_mutex_lock(&turns);
    if (operation->threaded && listed_count == listed_room) {
        Py_ssize_t room = 2 * listed_room + 64;
        CompiledRun **list = PyMem_RawRealloc(listed, room * sizeof *list);
        failed = list == NULL;
        if (!failed) {
            listed = list;
            listed_room = room;
        }
    }
    if (!failed && operation->queue != NULL) {
        failed = put_into_queue(operation->queue, (PyObject *)operation, operation);
    }
    if (!failed && operation->threaded) {
        listed[listed_count++] = (CompiledRun *)Py_NewRef(operation);
        operation->queued = 1;
        operation->seen_once = operation->is_long;
        if (!started && !stopped) {
            start();
        }
        else if (sleeping && (lazy || operation->is_long)) {
            pthread_cond_signal(&changed);
        }
    }
    pthread_mutex_unlock(&turns);
    if (failed) {
        PyErr_NoMemory();
    }
    return failed ? -1 : 0;
}

/* Remove an operation: when this returns, no thread runs it. */
void withdraw_operation(CompiledRun *operation)
{
    pthread_mutex_lock(&turns);
    if (operation->queue != NULL) {
        remove_from_queue(operation->queue, (PyObject *)operation);
    }
    int was_queued = operation->queued;
    for (Py_ssize_t i = listed_count - 1; was_queued && i >= 0; i--) {
        if (listed[i] == operation) {
            listed[i] = listed[--listed_count];
            break;
        }
    }
    operation->queued = 0;
    pthread_mutex_unlock(&turns);
    if (atomic_load_explicit(&operation->busy, memory_order_acquire) == RUNNING) {
        Wait wait = start_wait(0, INT32_MAX, 0, 1);
        Py_BEGIN_ALLOW_THREADS /* another Python thread may need the GIL to release it */
        while (atomic_load_explicit(&operation->busy, memory_order_acquire) == RUNNING) {
            pass_time(&wait, NULL);
        }
        Py_END_ALLOW_THREADS
    }
    if (was_queued) {
        Py_DECREF(operation);
    }
}

/* Return 1 if the thread starts an operation: it moves many bytes, and a core is free. */
int thread_begins(const CompiledRun *operation)
{
    return operation->is_long && operation->queued && started && operation->run->plan->spins;
}

/* Count the threads that wait for a request in machine code. */
void resume(int more)
{
    atomic_fetch_add_explicit(&waiting, more, memory_order_relaxed);
}

/* Stop the thread permanently. */
PyObject *stop_background(PyObject *module, PyObject *Py_UNUSED(none))
{
    (void)module;
    pthread_mutex_lock(&turns);
    int running = started;
    started = 0;
    stopped = 1;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&turns);
    if (running) {
        Py_BEGIN_ALLOW_THREADS
        pthread_join(thread, NULL);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

/* ---- forks ----------------------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&turns);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&turns);
}

static void new_condition(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, CLOCK);
#endif
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Drop all operations in a forked child: they and the thread belong to the parent. */
static void in_child(void)
{
    pthread_mutex_init(&turns, NULL);
    new_condition();
    started = sleeping = lazy = 0;
    stopped = 1;
    listed_count = 0;
    atomic_store(&waiting, 0);
}

int prepare_background(void)
{
    new_condition();
    return pthread_atfork(before_fork, after_fork, in_child) ? -1 : 0;
}
