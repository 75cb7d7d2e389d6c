/* MPI_Finalize at process exit waits for all ranks, also for a killed one. mpi4py calls it after
 * the end of the interpreter, so a native thread checks the processes meanwhile. */
#define _DEFAULT_SOURCE
#include "_finalize.h"
#include "_words.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Milliseconds between two polls, and consecutive polls that must find a rank dead. */
enum { PAUSE = 200, LOOKS = 10 };

typedef struct Peer {
    long rank, pid;
    long long began;
    Word *left; /* not 0 once the process has started an orderly exit */
} Peer;

static struct {
    Peer *peers;
    Py_ssize_t count;
    long rank, status;
} end;

/* Return 1 if a process has ended; like state_of of machine/processes.py. */
static int has_ended(const Peer *peer)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", peer->pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return errno == ENOENT;
    }
    ssize_t size = read(file, text, sizeof text - 1);
    int error = errno;
    close(file);
    if (size <= 0) {
        return size < 0 && error == ESRCH;
    }
    text[size] = 0;
    char *at = strrchr(text, ')'); /* the name may contain any character */
    if (at == NULL || strlen(at) < 3) {
        return 0;
    }
    if (strchr("ZXx", at[2])) {
        return 1;
    }
    for (int field = 0; field < 20 && at != NULL; field++) { /* from the state on */
        at = strchr(at + 1, ' ');
    }
    return at != NULL && strtoll(at, NULL, 10) != peer->began;
}

static void *check_processes(void *unused)
{
    struct timespec pause = {0, PAUSE * 1000000L};
    for (int looks = 0;;) {
        nanosleep(&pause, NULL);
        Peer *lost = NULL;
        for (Py_ssize_t i = 0; i < end.count && lost == NULL; i++) {
            if (!atomic_load(end.peers[i].left) && has_ended(&end.peers[i])) {
                lost = &end.peers[i];
            }
        }
        looks = lost == NULL ? 0 : looks + 1;
        if (looks == LOOKS) {
            dprintf(2,
                    "hpccoll: rank %ld was killed, or ended without a word: MPI_Finalize "
                    "cannot complete\n  rank %ld exits with status %ld\n",
                    lost->rank, end.rank, end.status);
            _exit((int)end.status);
        }
    }
    return unused;
}

static void start_check(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, check_processes, NULL) == 0) {
        pthread_detach(thread);
    }
}

PyObject *check_at_exit(PyObject *module, PyObject *args)
{
    PyObject *peers, *owner;
    (void)module;
    if (!PyArg_ParseTuple(args, "llO!O", &end.rank, &end.status, &PyTuple_Type, &peers, &owner)) {
        return NULL;
    }
    if (end.peers != NULL) {
        Py_RETURN_NONE;
    }
    Peer *found = calloc(PyTuple_GET_SIZE(peers) + 1, sizeof *found);
    if (found == NULL) {
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(peers); i++) {
        long long address;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(peers, i), "llLL", &found[i].rank, &found[i].pid,
                              &found[i].began, &address)) {
            free(found);
            return NULL;
        }
        found[i].left = (Word *)(intptr_t)address;
    }
    Py_INCREF(owner); /* its memory is read until process exit */
    end.peers = found;
    end.count = PyTuple_GET_SIZE(peers);
    /* Py_AtExit runs it just before mpi4py's, which was registered earlier. Without a free place it
     * starts now: this process is exiting. */
    if (Py_AtExit(start_check) < 0) {
        start_check();
    }
    Py_RETURN_NONE;
}
