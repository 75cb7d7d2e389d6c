/* Interpreter of compiled plan instructions: copies, reductions, and the words of channels.
 *
 * This file uses no Python objects, and only the functions that release the GIL: the stress test of
 * the channels, tests/sanitize/channels.c, includes it without an interpreter.
 */
#include "_clock.h"
#include "_events.h"
#include "_running.h"
#include "_wait.h"
#ifdef __linux__
#include <sys/uio.h>
#endif

/* Longer messages may be read from the sender's memory, and both ways are timed. Picoseconds per
 * byte above which copies into cells are slow, and messages after which the other way is timed
 * again. */
#define TIMED (64 << 10)
#define SLOW 250
#define PROBE 64
/* Bits of a call hash for the kind of element; 0 is equal to every kind. See call_hashes.py. */
#define KIND ((int64_t)7 << 20)

static inline char *place_of(const State *state, int64_t address)
{
    return state->base[BASE(address)] + OFFSET(address);
}

/* Return the estimate of a cost after a transfer that took some time, in picoseconds per byte; 0 is
 * unknown.
 *
 * It falls immediately and rises slowly: three slow transfers in a row exceed the limit, one does
 * not, because another process may have had the core meanwhile. */
static int64_t new_cost(int64_t cost, int64_t start, int64_t nbytes)
{
    int64_t last = (nanoseconds() - start) * 1000 / nbytes;
    last = last < 4 * SLOW ? last + 1 : 4 * SLOW;
    return !cost || last < cost ? last : cost + (last - cost) / 4;
}

/* Update a cost of the receiver of a channel, which the sender reads. */
static void publish(const Channel *channel, int which, int64_t start, int64_t nbytes)
{
    Word *word = &channel->taken[which];
    int64_t cost = atomic_load_explicit(word, memory_order_relaxed);
    atomic_store_explicit(word, new_cost(cost, start, nbytes), memory_order_relaxed);
}

/* Return where a message is in this rank's memory, for a receiver that maps or reads it; 0 if it is
 * copied into its cell.
 *
 * Registered memory is read in place. A read of other memory is one copy, by the receiver, instead
 * of one by each rank. Both take time if the ranks exchange messages or have only this one;
 * otherwise one copies while the other copies the message before. A reduction uses the message in
 * its cell. */
static int64_t where_to_read(const CompiledPlan *plan, const Channel *channel, const int64_t *step,
                             const char *message, int64_t number)
{
    int64_t nbytes = step[4], address = (int64_t)(intptr_t)message;
    int fits = nbytes <= channel->cell_bytes, way = (int)step[6];
    for (int64_t i = 0; i < channel->regions[0]; i++) {
        const int64_t *row = channel->regions + 2 + i * channel->regions[1];
        if (address >= row[REGION_START]
            && address + nbytes <= row[REGION_START] + row[REGION_BYTES]) {
            return (i + 1) << OFFSET_BITS | (address - row[REGION_START]);
        }
    }
    if (!fits) {
        return address;
    }
    if (!channel->process) {
        return 0;
    }
    int usual = number % PROBE != 0;
    if (plan->kernel.itemsize && way != EXCHANGED) {
        return plan->spins && plan->copy_cost > SLOW && usual ? address : 0;
    }
    if (!plan->spins) { /* on shared cores other processes would be timed */
        return way != PIPELINED ? address : 0;
    }
    int64_t read_cost = atomic_load_explicit(&channel->taken[READ_COST], memory_order_relaxed);
    int64_t take_cost = atomic_load_explicit(&channel->taken[TAKE_COST], memory_order_relaxed);
    int64_t copy_cost = plan->copy_cost, cell_cost = copy_cost + take_cost;
    if (way == PIPELINED) {
        cell_cost = copy_cost > take_cost ? copy_cost : take_cost;
    }
    return (read_cost <= cell_cost) == usual ? address : 0;
}

/* Wake the rank that sleeps at a word of a channel, after the store that it waits for. */
static inline void wake(const CompiledPlan *plan, Word *asleep, int64_t nbytes)
{
    if (!plan->spins || nbytes > TIMED) {
        atomic_thread_fence(memory_order_seq_cst); /* either rank sees the other's store */
    } /* short messages between ranks with a core each: a fence takes longer than a rare lost
         wake-up */
    if (!atomic_load_explicit(asleep, memory_order_relaxed)) {
        return;
    }
    atomic_store_explicit(asleep, 0, memory_order_relaxed);
#ifdef __linux__
    syscall(SYS_futex, asleep, FUTEX_WAKE, 1, NULL, NULL, 0);
#endif
}

enum { SENT = 1, ANNOUNCED };

/* Send a message: copy it into its cell, or announce where it is. Return 0 if its place is not
 * free; an announced message must not change until its receiver has read it. */
static inline int put(CompiledPlan *plan, const State *state, const int64_t *step, int64_t number)
{
    const Channel *channel = &plan->channels[step[2]];
    int64_t place = number & (PLACES - 1), nbytes = step[4], word = step[5];
    if (atomic_load_explicit(&channel->taken[place], memory_order_acquire) < number - PLACES) {
        return 0;
    }
    char *message = place_of(state, step[3]), *cell = cell_of(channel, number, nbytes);
    int64_t where = nbytes <= TIMED && nbytes <= channel->cell_bytes
                        ? 0
                        : where_to_read(plan, channel, step, message, number);
    if (where) {
        word = NOT_IN_CELL;
        atomic_store_explicit(&channel->line[WHERE + place], where, memory_order_relaxed);
        atomic_store_explicit(&channel->line[NBYTES + place], nbytes, memory_order_relaxed);
        atomic_store_explicit(&channel->line[CALL_HASH + place], plan->call_hash.value,
                              memory_order_relaxed);
    }
    else if (nbytes > TIMED && plan->spins) {
        int64_t start = nanoseconds();
        memcpy(cell, message, (size_t)nbytes);
        plan->copy_cost = new_cost(plan->copy_cost, start, nbytes);
    }
    else {
        memcpy(cell, message, (size_t)nbytes);
    }
    atomic_store_explicit(&channel->line[place], number << SIZE_BITS | word, memory_order_release);
    wake(plan, &channel->taken[NO_MESSAGE], nbytes);
    return where ? ANNOUNCED : SENT;
}

/* Send messages that had no place; forget announced ones that have been read. */
static void put_unsent(CompiledPlan *plan, State *state)
{
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < state->unsent_count; i++) {
        Unsent one = state->unsent[i];
        if (!one.announced) {
            int sent = put(plan, state, one.step, one.number);
            if (sent == SENT) {
                continue;
            }
            one.announced = sent == ANNOUNCED;
        }
        else if (atomic_load_explicit(&plan->channels[one.step[2]].taken[one.number & (PLACES - 1)],
                                      memory_order_acquire)
                 >= one.number) {
            continue;
        }
        state->unsent[kept++] = one;
    }
    state->unsent_count = kept;
}

/* Copy memory of another process; return -1 if that is not possible. */
static int read_process(int64_t process, char *into, int64_t from, int64_t nbytes)
{
#ifdef __linux__
    while (nbytes) { /* at most 2 GiB minus one page each time */
        struct iovec here = {into, (size_t)nbytes},
                     there = {(void *)(intptr_t)from, (size_t)nbytes};
        ssize_t copied = process_vm_readv((pid_t)process, &here, 1, &there, 1, 0);
        if (copied <= 0) {
            return -1;
        }
        into += copied, from += copied, nbytes -= copied;
    }
    return 0;
#else
    (void)process, (void)into, (void)from, (void)nbytes;
    return -1;
#endif
}

/* Return 1 if a rank has failed, so that memory read from it may have changed: it publishes the
 * failure before it returns the memory to its caller. */
static inline int has_failed(const CompiledPlan *plan)
{
    return plan->alarm != NULL && atomic_load_explicit(plan->alarm, memory_order_acquire);
}

/* Return the memory of an announced message, after a read if this process cannot map it; NULL if
 * Python has to receive it: it comes by MPI, is in device memory, or differs; or has copied it,
 * while this rank waited for a message before it, and released its sender. */
static char *fetch(CompiledPlan *plan, State *state, const int64_t *step)
{
    const Channel *channel = &plan->channels[step[2]];
    int64_t number = channel->counters->received + 1, place = number & (PLACES - 1);
    int64_t word = atomic_load_explicit(&channel->line[place], memory_order_acquire);
    if (word != (number << SIZE_BITS | NOT_IN_CELL)
        || atomic_load_explicit(&channel->taken[place], memory_order_relaxed) == number) {
        return NULL;
    }
    int64_t where = atomic_load_explicit(&channel->line[WHERE + place], memory_order_relaxed);
    int64_t nbytes = atomic_load_explicit(&channel->line[NBYTES + place], memory_order_relaxed);
    int64_t call_hash =
        atomic_load_explicit(&channel->line[CALL_HASH + place], memory_order_relaxed);
    int64_t own = plan->call_hash.value, differs = call_hash ^ own, region = where >> OFFSET_BITS;
    if (nbytes != step[4] || (differs & ~KIND) || (differs && (call_hash & KIND) && (own & KIND))) {
        return NULL;
    }
    if (region) {
        const int64_t *regions = channel->regions;
        int64_t memory =
            region <= regions[0]
                ? regions[2 + (region - 1) * regions[1] + REGION_PARTS + channel->column]
                : 0;
        state->in_place = memory != 0;
        return memory ? (char *)(intptr_t)(memory + OFFSET(where)) : NULL;
    }
    char *into = place_of(state, step[3]);
    int64_t start = nanoseconds();
    if (!where || !channel->process || read_process(channel->process, into, where, nbytes) < 0) {
        return NULL;
    }
    if (plan->spins && nbytes > TIMED) {
        publish(channel, READ_COST, start, nbytes);
    }
    return has_failed(plan) ? NULL : into;
}

/* Poll the word of the message of a TAKE: WAITING, ELSEWHERE, or DONE if it is in its cell. */
static inline int look(CompiledPlan *plan, State *state, const int64_t *step)
{
    if (state->unsent_count) {
        put_unsent(plan, state);
    }
    if (step[0] == FLUSH) {
        return state->unsent_count ? WAITING : DONE;
    }
    const Channel *channel = &plan->channels[step[2]];
    int64_t number = channel->counters->received + 1;
    int64_t word =
        atomic_load_explicit(&channel->line[number & (PLACES - 1)], memory_order_acquire);
    if (word == (number << SIZE_BITS | step[5])) {
        return DONE;
    }
    return word >> SIZE_BITS == number ? ELSEWHERE : WAITING;
}

/* Return the word at which to sleep for the message or the cell of an instruction; NULL if several
 * messages wait for places, or where there are no futexes. */
static Word *sleep_word(CompiledPlan *plan, const State *state, const int64_t *step)
{
#ifdef __linux__
    int placeless = 0; /* messages that this rank has to send when there is a place */
    for (Py_ssize_t i = 0; i < state->unsent_count; i++) {
        placeless += !state->unsent[i].announced;
    }
    if (step[0] == TAKE && !placeless) {
        return &plan->channels[step[2]].taken[NO_MESSAGE];
    }
    if (step[0] == FLUSH && (!placeless || state->unsent_count == 1)) {
        return &plan->channels[state->unsent->step[2]].taken[NO_CELL];
    }
#endif
    (void)plan, (void)state, (void)step;
    return NULL;
}

/* Wait for the message or cell of an instruction, up to `timeout_us` us; poll once for 0. A
 * negative one stands for the next sleep of a wait that other work interrupts. */
static int wait_for(CompiledPlan *plan, State *state, const int64_t *step, int64_t timeout_us)
{
    int found = WAITING;
    for (int i = 0; i < (timeout_us ? plan->spins : 1) && found == WAITING; i++) {
        found = look(plan, state, step);
    }
    if (found != WAITING || !timeout_us) {
        return found;
    }
    PyThreadState *saved = state->detached ? NULL : PyEval_SaveThread();
    int64_t nbytes = step[0] == TAKE ? step[4] : state->unsent->step[4];
    int is_long = nbytes > TIMED;
    Wait wait = start_wait(state->awaited == step ? state->since : 0, timeout_us,
                           !plan->spins ? 0
                           : is_long    ? POLL_FOR_LONG
                                        : POLL_FOR,
                           !is_long);
    while (found == WAITING
           && pass_time(&wait, may_sleep(&wait) ? sleep_word(plan, state, step) : NULL)) {
        found = look(plan, state, step);
    }
    end_wait(&wait);
    state->awaited = found == WAITING ? step : NULL;
    state->since = wait.since;
    if (saved != NULL) {
        PyEval_RestoreThread(saved);
    }
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
    const Channel *received_from = NULL; /* the channel of the message in use, and its bytes */
    int64_t received_bytes = 0;
    for (;; step += WIDTH) {
        switch (step[0]) {
        case COPY: {
            char *into = place_of(state, step[2]), *from = place_of(state, step[3]);
            int timed = step[4] > TIMED && BASE(step[3]) == CELL && plan->spins;
            int64_t start = timed ? nanoseconds() : 0;
            if (into == from) { /* a message that was read is at its destination */
                break;
            }
            memmove(into, from, (size_t)step[4]);
            if (timed) {
                publish(received_from, TAKE_COST, start, step[4]);
            }
            break;
        }
        case REDUCE: {
            const Kernel *kernel = &plan->kernel;
            npy_intp count = step[6], size = kernel->itemsize, strides[3] = {size, size, size};
            char *operands[3] = {place_of(state, step[4]), place_of(state, step[5]),
                                 place_of(state, step[3])};
            if (kernel->half != NULL) {
                reduce_half(plan, (int)step[2], count, operands);
            }
            else {
                kernel->loop(operands, &count, strides, kernel->data);
            }
            break;
        }
        case SEND: {
            int64_t number = ++plan->channels[step[2]].counters->sent;
            int sent = put(plan, state, step, number);
            if (sent != SENT) {
                Unsent one = {step, number, sent == ANNOUNCED};
                state->unsent[state->unsent_count++] = one;
            }
            break;
        }
        case FLUSH:
            if (!state->unsent_count) {
                break;
            }
            /* fall through */
        case TAKE: {
            int found = look(plan, state, step);
            if (found == WAITING) {
                found = wait_for(plan, state, step, timeout_us);
            }
            received_from = &plan->channels[step[2]];
            received_bytes = step[4];
            if (found == ELSEWHERE && (state->base[CELL] = fetch(plan, state, step)) != NULL) {
                break;
            }
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
            int in_place = state->in_place;
            state->in_place = 0;
            if (in_place && has_failed(plan)) { /* Python raises the error */
                state->at = (step - plan->code) / WIDTH;
                return ELSEWHERE;
            }
            const Channel *channel = &plan->channels[step[2]];
            int64_t number = ++channel->counters->received;
            atomic_store_explicit(&channel->taken[number & (PLACES - 1)], number,
                                  memory_order_release);
            wake(plan, &channel->taken[NO_CELL], received_bytes);
            break;
        }
        case NOTE: add_phase(step[2], step[3]); break;
        case POST: break;
        case START:
        case AWAIT: /* Python handles MPI messages and then continues after this */
            state->at = (step - plan->code) / WIDTH;
            return REMOTE;
        default: state->at = (step - plan->code) / WIDTH; return DONE;
        }
    }
}
