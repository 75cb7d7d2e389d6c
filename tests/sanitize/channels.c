/* Stress of the channels between compiled executors, for ThreadSanitizer and AddressSanitizer.
 *
 * Every rank is a thread with compiled plans of its own, and the ranks share what real ones have in
 * shared memory: the lines and the cells of their channels. Nothing else orders them - no
 * interpreter, whose lock would - so that a word that announces a message too early is a race.
 * Every byte that arrives is compared with what was sent.
 *
 *     channels [ROUNDS]      make sanitize builds and runs it; prints a line for each pattern
 *
 * The patterns are the ways in which a channel is used: one message each way; more messages than
 * there are places; reductions out of cells; messages long enough to be timed, and longer ones that
 * are read from the sender's memory; a message that the test receives; several peers at once. Each
 * runs with and without a processor for every rank, at once and in slices, with random delays
 * between the slices.
 */
#include "_events.h"
#include "_running.h"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What the executor calls of the interpreter: there is none to let go. */
PyThreadState *PyEval_SaveThread(void)
{
    return NULL;
}
void PyEval_RestoreThread(PyThreadState *state)
{
    (void)state;
}

EventRing event_ring; /* without rows no event is recorded */

enum { MOST_RANKS = 4, MOST_STEPS = 64, LINE = 16 };
/* The longest message, longer than those that are timed; one of every few is elsewhere. */
#define LONGEST ((96 << 10) + 40)
#define RARE 5
#define ELSEWHERE_SIZE (((int64_t)1 << SIZE_BITS) - 1)
#define AT(base) ((int64_t)(base) << OFFSET_BITS)

/* What two ranks share: words, and in the line also where a message lies; what was taken; cells. */
typedef struct {
    Word line[LINE], taken[LINE];
    char *small, *cells;
} Wire;

typedef struct {
    const char *name;
    int ranks, messages, reduces, elsewhere;
    int64_t nbytes;
    int divisor; /* of the rounds */
} Pattern;

typedef struct {
    const Pattern *pattern;
    int rank, spins, sliced;
    long rounds, wrong;
} Rank;

static Wire wires[MOST_RANKS][MOST_RANKS];
static int64_t no_regions[] = {0, 3};

static void add(char **operands, npy_intp const *count, npy_intp const *strides, void *data)
{
    (void)strides;
    (void)data;
    int64_t *left = (int64_t *)operands[0], *right = (int64_t *)operands[1];
    for (npy_intp i = 0; i < *count; i++) {
        ((int64_t *)operands[2])[i] = left[i] + right[i];
    }
}

/* What a rank sends in a round, as message m, in its i-th word. */
static int64_t word_of(int rank, long round, int message, int64_t i)
{
    return ((int64_t)round * 8 + message) * 1000003 + rank * 101 + i;
}

static int64_t *emit(int64_t *code, int64_t op, int64_t a, int64_t b, int64_t c, int64_t d,
                     int64_t e)
{
    int64_t step[WIDTH] = {op, 0, a, b, c, d, e, 0};
    memcpy(code, step, sizeof step);
    return code + WIDTH;
}

/* A rank's program: to and from every other rank, which has channel 2i out and 2i + 1 in. */
static int64_t write_code(int64_t *code, const Pattern *pattern)
{
    int64_t *at = code, nbytes = pattern->nbytes;
    int peers = pattern->ranks - 1;
    for (int m = 0; m < pattern->messages; m++) {
        for (int i = 0; i < peers; i++) {
            at = emit(at, SEND, 2 * i, AT(IN) + m * nbytes, nbytes, nbytes, 0);
        }
    }
    for (int m = 0; m < pattern->messages; m++) {
        for (int i = 0; i < peers; i++) {
            int64_t into = AT(OUT) + (i * pattern->messages + m) * nbytes;
            at = emit(at, TAKE, 2 * i + 1, into, nbytes, nbytes, 0);
            at = pattern->reduces
                     ? emit(at, REDUCE, 0, into, AT(CELL), AT(IN) + m * nbytes, nbytes / 8)
                     : emit(at, COPY, into, AT(CELL), nbytes, 0, 0);
            at = emit(at, TAKEN, 2 * i + 1, 0, 0, 0, 0);
        }
    }
    at = emit(at, FLUSH, 0, 0, 0, 0, 0);
    at = emit(at, END, 0, 0, 0, 0, 0);
    return (at - code) / WIDTH;
}

static void delay(unsigned *random)
{
    *random = *random * 1664525 + 1013904223;
    unsigned kind = *random >> 28;
    if (kind == 0) {
        sched_yield();
    }
    else if (kind < 4) {
        for (volatile unsigned i = 0; i < (*random >> 20 & 255); i++)
            ;
    }
}

/* Announce that the next message of a channel lies in the sender's memory, as endpoint.py does. */
static void point(Wire *wire, Counters *counters, const char *memory)
{
    int64_t number = ++counters->sent, place = number & (PLACES - 1);
    while (atomic_load_explicit(&wire->taken[place], memory_order_acquire) < number - PLACES) {
        sched_yield();
    }
    atomic_store_explicit(&wire->line[PLACES + place], (int64_t)(intptr_t)memory,
                          memory_order_relaxed);
    atomic_store_explicit(&wire->line[place], number << SIZE_BITS | ELSEWHERE_SIZE,
                          memory_order_release);
}

/* Read a message where it lies, give it back, and go on behind it, as an slow path does. */
static void fetch(CompiledPlan *plan, State *state, char *into)
{
    const int64_t *step = plan->code + state->at * WIDTH;
    const Channel *channel = &plan->channels[step[2]];
    int64_t number = ++channel->counters->received, place = number & (PLACES - 1);
    memcpy(into,
           (char *)(intptr_t)atomic_load_explicit(&channel->line[PLACES + place],
                                                  memory_order_relaxed),
           (size_t)step[4]);
    atomic_store_explicit(&channel->taken[place], number, memory_order_release);
    while (plan->code[state->at * WIDTH] != TAKEN) {
        state->at++;
    }
    state->at++;
}

static void *run_rank(void *argument)
{
    Rank *rank = argument;
    const Pattern *pattern = rank->pattern;
    int peers = pattern->ranks - 1, messages = pattern->messages;
    int64_t nbytes = pattern->nbytes, words = nbytes / 8;
    int64_t code[MOST_STEPS * WIDTH], *in = malloc(messages * nbytes);
    int64_t *out = malloc(peers * messages * nbytes);
    Unsent unsent[MOST_STEPS];
    Counters sides[2 * MOST_RANKS];
    Channel channels[2 * MOST_RANKS];
    memset(sides, 0, sizeof sides);
    for (int i = 0; i < peers; i++) {
        int peer = i + (i >= rank->rank);
        for (int incoming = 0; incoming < 2; incoming++) {
            Wire *wire = incoming ? &wires[peer][rank->rank] : &wires[rank->rank][peer];
            Channel made = {&sides[2 * i + incoming],
                            wire->line,
                            wire->taken,
                            wire->small,
                            wire->cells,
                            LONGEST,
                            getpid(),
                            no_regions,
                            0};
            channels[2 * i + incoming] = made;
        }
    }
    CompiledPlan plan;
    memset(&plan, 0, sizeof plan);
    plan.code = code;
    plan.length = write_code(code, pattern);
    plan.channels = channels;
    plan.channel_count = 2 * peers;
    plan.spins = rank->spins;
    plan.kernel.loop = add;
    plan.kernel.itemsize = 8;
    unsigned random = 7 * rank->rank + 1;
    for (long round = 1; round <= rank->rounds; round++) {
        int away = pattern->elsewhere && round % RARE == rank->rank;
        for (int m = 0; m < messages; m++) {
            for (int64_t i = 0; i < words; i++) {
                in[m * words + i] = word_of(rank->rank, round, m, i);
            }
        }
        State state = {{(char *)in, (char *)out, NULL, NULL}, 0, 0, unsent};
        if (away) { /* instead of what the compiled plan sends first */
            point(&wires[rank->rank][!rank->rank], channels[0].counters, (char *)in);
            state.at = 1;
        }
        for (;;) {
            int found = advance(&plan, &state, rank->sliced ? random >> 31 : 1000);
            if (found == DONE) {
                break;
            }
            if (found == ELSEWHERE) {
                fetch(&plan, &state, (char *)out);
            }
            else if (rank->sliced) {
                delay(&random);
            }
        }
        for (int i = 0; i < peers; i++) {
            for (int m = 0; m < messages; m++) {
                for (int64_t w = 0; w < words; w++) {
                    int64_t wanted = word_of(i + (i >= rank->rank), round, m, w);
                    if (pattern->reduces) {
                        wanted += word_of(rank->rank, round, m, w);
                    }
                    rank->wrong += out[(i * messages + m) * words + w] != wanted;
                }
            }
        }
        if (away) { /* its memory is the sender's again when it was taken */
            const Word *taken = &channels[0].taken[channels[0].counters->sent & (PLACES - 1)];
            while (atomic_load_explicit(taken, memory_order_acquire) < channels[0].counters->sent) {
                sched_yield();
            }
        }
    }
    free(in);
    free(out);
    return NULL;
}

static int run_pattern(const Pattern *pattern, int spins, int sliced, long rounds)
{
    pthread_t threads[MOST_RANKS];
    Rank ranks[MOST_RANKS];
    memset(ranks, 0, sizeof ranks);
    for (int from = 0; from < pattern->ranks; from++) {
        for (int to = 0; to < pattern->ranks; to++) {
            Wire *wire = &wires[from][to];
            for (int i = 0; i < LINE; i++) {
                atomic_init(&wire->line[i], 0);
                atomic_init(&wire->taken[i], 0);
            }
            wire->small = from == to ? NULL : malloc(PLACES * SMALL);
            wire->cells = from == to ? NULL : malloc(PLACES * LONGEST);
        }
    }
    long wrong = 0;
    for (int i = 0; i < pattern->ranks; i++) {
        Rank rank = {pattern, i, spins, sliced, rounds, 0};
        ranks[i] = rank;
        if (pthread_create(&threads[i], NULL, run_rank, &ranks[i])) {
            perror("pthread_create");
            exit(2);
        }
    }
    for (int i = 0; i < pattern->ranks; i++) {
        pthread_join(threads[i], NULL);
        wrong += ranks[i].wrong;
    }
    for (int from = 0; from < pattern->ranks; from++) {
        for (int to = 0; to < pattern->ranks; to++) {
            free(wires[from][to].small);
            free(wires[from][to].cells);
        }
    }
    long messages = rounds * pattern->messages * pattern->ranks * (pattern->ranks - 1);
    printf("%-24s %s, %-8s %9ld messages, %ld words wrong\n", pattern->name,
           spins ? "spins " : "yields", sliced ? "slices," : "whole,", messages, wrong);
    fflush(stdout);
    return wrong != 0;
}

int main(int count, char **arguments)
{
    static const Pattern patterns[] = {
        {"one message each way", 2, 1, 0, 0, 8, 1},
        {"of a page", 2, 1, 0, 0, 4096, 8},
        {"reductions from cells", 2, 1, 1, 0, 64, 1},
        {"more than places", 2, 7, 0, 0, 24, 4},
        {"messages elsewhere", 2, 1, 0, 1, 40, 1},
        {"long ones, timed", 2, 1, 0, 0, LONGEST, 400},
        {"longer than a cell", 2, 3, 0, 0, 2 * LONGEST, 4000},
        {"longer, four ranks", 4, 2, 0, 0, 2 * LONGEST, 8000},
        {"four ranks", 4, 1, 1, 0, 16, 8},
        {"four ranks, many", 4, 5, 0, 0, 16, 16},
    };
    long rounds = count > 1 ? atol(arguments[1]) : 60000;
    int failed = 0;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        for (int spins = 0; spins <= SPINS; spins += SPINS) {
            for (int sliced = 0; sliced < 2; sliced++) {
                failed |= run_pattern(&patterns[i], spins, sliced, rounds / patterns[i].divisor);
            }
        }
    }
    return failed;
}
