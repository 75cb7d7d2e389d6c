/* Interpreter of compiled plan instructions: copies, reductions, and the words of channels.
 *
 * This file uses no Python objects, and only the functions that release the GIL: the stress test of
 * the channels, tests/sanitize/channels.c, includes it without an interpreter.
 */
#include "_executor.h"
#include <sched.h>
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Polls between two yields, and yields between two reads of the clock. */
#define LOOKS 50
#define YIELDS 16
/* Yields of a rank on a shared core before it sleeps: on an idle machine, yields alone are faster. */
#define YIELDS_BEFORE_SLEEP 24
/* Longer messages are timed. Picoseconds per byte above which reading in place is better, and calls
 * after which that is measured again; the same numbers as in rendezvous.py. */
#define TIMED (64 << 10)
#define SLOW 250
#define PROBE 64

static inline char *place_of(const State *state, int64_t address)
{
    return state->base[BASE(address)] + OFFSET(address);
}

static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Record a moment in a ring of `kept` rows. */
void note_moment(int64_t *moments, int64_t kept, int64_t where, int64_t what)
{
    int64_t *moment = moments + MOMENT * (1 + (moments[0]++ & (kept - 1)));
    moment[0] = where;
    moment[1] = what;
    moment[2] = nanoseconds();
}

/* Copy a long message and update the estimate of the copy cost.
 *
 * The estimate falls immediately and rises slowly: three slow copies in a row exceed the limit,
 * one does not, because another process may have had the core meanwhile. */
static void copy_timed(CompiledPlan *plan, char *into, const char *from, int64_t nbytes)
{
    int64_t start = nanoseconds();
    memcpy(into, from, (size_t)nbytes);
    int64_t copy_cost = (nanoseconds() - start) * 1000 / nbytes;
    copy_cost = copy_cost < 2 * SLOW ? copy_cost : 2 * SLOW;
    plan->copy_cost = copy_cost < plan->copy_cost ? copy_cost : plan->copy_cost + (copy_cost - plan->copy_cost) / 4;
}

/* Return 1 if Python should run a call: reading its long messages in place is faster than writing
 * to cache lines of another core. The copy is measured again at intervals. */
int should_fall_back(CompiledPlan *plan)
{
    return plan->copy_cost > SLOW && ++plan->skip_count % PROBE;
}

/* Wake the rank that sleeps at a word of a channel, after the store that it waits for. */
static inline void wake(const CompiledPlan *plan, Word *asleep)
{
    if (plan->spins)  /* ranks with a core each do not sleep */
        return;
    atomic_thread_fence(memory_order_seq_cst);  /* either rank sees the other's store */
    if (!atomic_load_explicit(asleep, memory_order_relaxed))
        return;
    atomic_store_explicit(asleep, 0, memory_order_relaxed);
#ifdef __linux__
    syscall(SYS_futex, asleep, FUTEX_WAKE, 1, NULL, NULL, 0);
#endif
}

/* Copy a message into its cell and announce it; return 0 if the cell is not free. */
static inline int put(CompiledPlan *plan, const State *state, const int64_t *step, int64_t number)
{
    const Channel *channel = &plan->channels[step[2]];
    int64_t place = number & (PLACES - 1);
    if (atomic_load_explicit(&channel->taken[place], memory_order_acquire) < number - PLACES)
        return 0;
    char *cell = cell_of(channel, number, step[4]);
    if (step[4] > TIMED && plan->spins)  /* on shared cores it would time other processes */
        copy_timed(plan, cell, place_of(state, step[3]), step[4]);
    else
        memcpy(cell, place_of(state, step[3]), (size_t)step[4]);
    atomic_store_explicit(&channel->line[place], number << SIZE_BITS | step[5],
                          memory_order_release);
    wake(plan, &channel->taken[NO_MESSAGE]);
    return 1;
}

static void put_unsent(CompiledPlan *plan, State *state)
{
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < state->unsent_count; i++)
        if (!put(plan, state, state->unsent[i].step, state->unsent[i].number))
            state->unsent[kept++] = state->unsent[i];
    state->unsent_count = kept;
}

/* Poll the word of the message of a TAKE: WAITING, ELSEWHERE, or DONE if it is in its cell. */
static inline int look(CompiledPlan *plan, State *state, const int64_t *step)
{
    if (state->unsent_count)
        put_unsent(plan, state);
    if (step[0] == FLUSH)
        return state->unsent_count ? WAITING : DONE;
    const Channel *channel = &plan->channels[step[2]];
    int64_t number = channel->counters->received + 1;
    int64_t word = atomic_load_explicit(&channel->line[number & (PLACES - 1)],
                                        memory_order_acquire);
    if (word == (number << SIZE_BITS | step[5]))
        return DONE;
    return word >> SIZE_BITS == number ? ELSEWHERE : WAITING;
}

/* Return the word at which to sleep for the message or the cell of an instruction; NULL if several
 * messages wait for cells, or where there are no futexes. */
static Word *sleep_word(CompiledPlan *plan, const State *state, const int64_t *step)
{
#ifdef __linux__
    if (step[0] == TAKE && !state->unsent_count)
        return &plan->channels[step[2]].taken[NO_MESSAGE];
    if (step[0] == FLUSH && state->unsent_count == 1)
        return &plan->channels[state->unsent->step[2]].taken[NO_CELL];
#endif
    (void)plan, (void)state, (void)step;
    return NULL;
}

/* Wait on a shared core until `end`: yield, then sleep. A launcher may give every rank a session of
 * its own, or a batch system a control group. The kernel shares processors between these first, and
 * a yield then lets no other rank run: this one keeps its core for milliseconds. */
static int yield_or_sleep(CompiledPlan *plan, State *state, const int64_t *step, int64_t end)
{
    int found = WAITING;
    int64_t left = 1;
    for (int yields = 0; found == WAITING && left > 0; yields++) {
        Word *asleep = yields < YIELDS_BEFORE_SLEEP ? NULL : sleep_word(plan, state, step);
        if (asleep == NULL) {
            sched_yield();
            found = look(plan, state, step);
            left = yields % YIELDS ? 1 : end - nanoseconds();
            continue;
        }
        atomic_store_explicit(asleep, ASLEEP, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        found = look(plan, state, step);
        left = end - nanoseconds();
#ifdef __linux__
        struct timespec most = {left / 1000000000, left % 1000000000};
        if (found == WAITING && left > 0)
            syscall(SYS_futex, asleep, FUTEX_WAIT, 1, &most, NULL, 0);
#endif
        atomic_store_explicit(asleep, 0, memory_order_relaxed);
        if (found == WAITING)
            found = look(plan, state, step);
    }
    return found;
}

/* Wait for the message or cell of an instruction, up to `timeout_us` us; poll once for 0. */
static int wait_for(CompiledPlan *plan, State *state, const int64_t *step, int64_t timeout_us)
{
    int found = WAITING;
    for (int i = 0; i < (timeout_us ? plan->spins : 1) && found == WAITING; i++)
        found = look(plan, state, step);
    if (found != WAITING || !timeout_us)
        return found;
    Py_BEGIN_ALLOW_THREADS
    int64_t end = nanoseconds() + 1000 * timeout_us;
    if (plan->spins)
        while (found == WAITING && nanoseconds() < end)
            for (int yields = 0; yields < YIELDS && found == WAITING; yields++) {
                sched_yield();
                for (int i = 0; i < LOOKS && found == WAITING; i++)
                    found = look(plan, state, step);
            }
    else
        found = yield_or_sleep(plan, state, step, end);
    Py_END_ALLOW_THREADS
    return found;
}

/* Reduce 16-bit floats; the form selects the operands in the accumulator. */
static void reduce_half(const CompiledPlan *plan, int form, int64_t count, char **operands)
{
    const HalfKernel *kernel = plan->kernel.half;
    char *held = plan->accumulator;
    kernel->apply(kernel, form, count, form & LEFT_WIDE ? held : operands[0],
                  form & RIGHT_WIDE ? held : operands[1], form & INTO_WIDE ? held : operands[2],
                  operands[2]);
}

/* Run from the current state until the end, or until a message is missing for too long. */
int advance(CompiledPlan *plan, State *state, int64_t timeout_us)
{
    const int64_t *step = plan->code + state->at * WIDTH;
    for (;; step += WIDTH) {
        switch (step[0]) {
        case COPY:
            memmove(place_of(state, step[2]), place_of(state, step[3]), (size_t)step[4]);
            break;
        case REDUCE: {
            const Kernel *kernel = &plan->kernel;
            npy_intp count = step[6], size = kernel->itemsize, strides[3] = {size, size, size};
            char *operands[3] = {place_of(state, step[4]), place_of(state, step[5]),
                                 place_of(state, step[3])};
            if (kernel->half != NULL)
                reduce_half(plan, (int)step[2], count, operands);
            else
                kernel->loop(operands, &count, strides, kernel->data);
            break;
        }
        case SEND: {
            int64_t number = ++plan->channels[step[2]].counters->sent;
            if (!put(plan, state, step, number)) {
                Unsent missing = {step, number};
                state->unsent[state->unsent_count++] = missing;
            }
            break;
        }
        case FLUSH:
            if (!state->unsent_count)
                break;
            /* fall through */
        case TAKE: {
            int found = look(plan, state, step);
            if (found == WAITING)
                found = wait_for(plan, state, step, timeout_us);
            if (found != DONE) {
                state->at = (step - plan->code) / WIDTH;
                return found;
            }
            if (step[0] == TAKE) {
                const Channel *channel = &plan->channels[step[2]];
                state->base[CELL] = cell_of(channel, channel->counters->received + 1, step[4]);
            }
            break;
        }
        case TAKEN: {
            const Channel *channel = &plan->channels[step[2]];
            int64_t number = ++channel->counters->received;
            atomic_store_explicit(&channel->taken[number & (PLACES - 1)], number,
                                  memory_order_release);
            wake(plan, &channel->taken[NO_CELL]);
            break;
        }
        case NOTE:
            note_moment(plan->moments, plan->moments_kept, step[2], step[3]);
            break;
        case POST:
            break;
        case START:
        case AWAIT: /* Python handles MPI messages and then continues after this */
            state->at = (step - plan->code) / WIDTH;
            return REMOTE;
        default:
            state->at = (step - plan->code) / WIDTH;
            return DONE;
        }
    }
}
