/* The one wait of the machine code: poll, then yield, then sleep.
 *
 *     Wait wait = start_wait(since, timeout_us, poll_for, yielding);
 *     while (!test() && pass_time(&wait, word)) {
 *     }
 *     end_wait(&wait);
 *
 * The word, if there is one, is set while the rank sleeps: who makes the test succeed clears it and
 * wakes the rank. Without one, or if a wake-up is lost, the sleep ends by itself.
 *
 * Policy. A rank with a core of its own polls for POLL_FOR, and yields meanwhile unless it waits
 * for a long message: a thread of Python may want the core, and a yield would give it a whole time
 * slice. On a shared core it yields a few times: alone yields are faster on an idle machine. But a
 * launcher may give every rank a session of its own, or a batch system a control group. The kernel
 * shares processors between these first, and a yield then lets no other rank run.
 *
 * Measured with 2 ranks on 2 cores, of which one is half a second late: yields for as long as the
 * wait take 65-85 % of a core; sleeps of at most 4 ms, with a look of Python at the other ranks
 * after every fourth, 3-4 %; a sleep costs some 30 us. Waits at a word sleep for WOKEN_SLEEP at
 * least: shorter sleeps wake the rank while others copy, and long messages took 1.2-1.4 times as
 * long. A sleeping rank runs again 10-50 us after its wake-up, so POLL_FOR is a few times longer.
 */
#ifndef HPCCOLL_WAIT_H
#define HPCCOLL_WAIT_H

#include "_clock.h"
#include "_words.h"
#include <sched.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* The word of a rank that sleeps: 1 in both halves, one of which is the futex. */
#define ASLEEP ((int64_t)1 << 32 | 1)
/* Polls between two yields, and yields between two reads of the clock. */
#define POLLS 50
#define YIELDS 16
/* Nanoseconds that a rank with its own core polls, for a short and for a long message. */
#define POLL_FOR 200000
#define POLL_FOR_LONG 100000
/* Yields of a rank on a shared core. */
#define YIELDS_BEFORE_SLEEP 24
/* Nanoseconds of a sleep: this part of the time waited, so that it delays a wait little. */
#define PART 8
#define SHORTEST_SLEEP 200000
#define LONGEST_SLEEP 4000000
/* Nanoseconds of the first sleeps of a rank that others wake. */
#define WOKEN_SLEEP 1000000

typedef struct {
    int64_t since, end, poll_until, sleep;
    int polls, yields, polling, yielding;
    Word *asleep;
} Wait;

/* Return the nanoseconds of the next sleep of a wait. */
static inline int64_t next_sleep(int64_t waited)
{
    int64_t part = waited / PART;
    return part < SHORTEST_SLEEP ? SHORTEST_SLEEP : part > LONGEST_SLEEP ? LONGEST_SLEEP : part;
}

/* Start a wait for some microseconds, or continue the one that began at `since`, if that is not 0.
 * A negative number stands for one sleep: other work interrupts the wait. It polls for `poll_for`
 * nanoseconds, with yields or without. */
static inline Wait start_wait(int64_t since, int64_t timeout_us, int64_t poll_for, int yielding)
{
    int64_t now = nanoseconds();
    Wait wait = {.since = since ? since : now, .yielding = yielding};
    wait.end = now + (timeout_us < 0 ? next_sleep(now - wait.since) : 1000 * timeout_us);
    wait.poll_until = wait.since + poll_for;
    wait.polling = now < wait.poll_until;
    wait.yields = since || (poll_for && !yielding) ? YIELDS_BEFORE_SLEEP : 0;
    return wait;
}

/* Show the ranks that would wake this one that it is awake. */
static inline void end_wait(Wait *wait)
{
    if (wait->asleep != NULL) {
        atomic_store_explicit(wait->asleep, 0, memory_order_relaxed);
        wait->asleep = NULL;
    }
}

/* Return 1 if the next test that fails is followed by a sleep. */
static inline int may_sleep(const Wait *wait)
{
    return !wait->polling && wait->yields >= YIELDS_BEFORE_SLEEP;
}

/* Let time pass after a test that failed; return 0 once the wait has timed out. */
static inline int pass_time(Wait *wait, Word *word)
{
    struct timespec most = {0, wait->sleep};
#ifdef __linux__
    if (wait->asleep != NULL) { /* the test has failed since its word was set */
        syscall(SYS_futex, wait->asleep, FUTEX_WAIT, 1, &most, NULL, 0);
        end_wait(wait);
        return 1;
    }
#else
    word = NULL;
#endif
    if (wait->polling) {
        if (++wait->polls % POLLS) {
            return 1;
        }
        if (wait->yielding) {
            sched_yield();
        }
        if (wait->polls % (POLLS * YIELDS)) {
            return 1;
        }
        int64_t now = nanoseconds();
        wait->polling = now < wait->poll_until;
        return now < wait->end;
    }
    if (wait->yields < YIELDS_BEFORE_SLEEP) {
        sched_yield();
        return ++wait->yields % YIELDS || nanoseconds() < wait->end;
    }
    int64_t now = nanoseconds(), left = wait->end - now;
    if (left <= 0) {
        return 0;
    }
    wait->sleep = next_sleep(now - wait->since);
    if (word != NULL && wait->sleep < WOKEN_SLEEP) {
        wait->sleep = WOKEN_SLEEP;
    }
    if (left < wait->sleep) {
        wait->sleep = left;
    }
    if (word != NULL) {
        atomic_store_explicit(word, ASLEEP, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        wait->asleep = word;
    }
    else if (now - wait->since < POLL_FOR) { /* no rank wakes it, and a sleep takes longer */
        sched_yield();
    }
    else {
        most.tv_nsec = wait->sleep;
        nanosleep(&most, NULL);
    }
    return 1;
}

#endif
