/* Interpreter of compiled plan instructions: copies, reductions, and the words of channels.
 *
 * This file uses no Python objects, and only the functions that release the GIL: the stress test of
 * the channels, tests/sanitize/channels.c, includes it without an interpreter.
 */
#include "_executor.h"
#include <sched.h>
#include <time.h>

/* Polls between two yields, and yields between two reads of the clock. */
#define LOOKS 50
#define YIELDS 16
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
    int looks = plan->spins ? LOOKS : 1;
    do {
        for (int yields = 0; yields < YIELDS && found == WAITING; yields++) {
            sched_yield();
            for (int i = 0; i < looks && found == WAITING; i++)
                found = look(plan, state, step);
        }
    } while (found == WAITING && nanoseconds() < end);
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
