/* The event loop, compiled: the same events in the same order as hpccoll/simulator/event_loop.py,
   whose comments say what they mean, and the same operations on the same numbers, so the same bits.

   All that is known before (programs, channels, what they use) and all that is found (the log of
   every round, busy times) lies in arrays that Python makes; see hpccoll/simulator/wiring.py.
   Messages on their way, sides that wait and shares of resources live in pools, and are named by
   their places there. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* As in event_loop.py and fair_share.py. */
#define TOGETHER 1e-14
#define ALIKE 1e-14
#define TOLERANCE 1e-12

/* Events between two reports of the progress to Python, which may interrupt the run. */
enum { OFTEN = 1 << 13 };
enum { BEGIN, FINISH, POST, COMPUTED };
enum { NONE = -1 };

/* What comes in, and what goes out: arrays in this order. */
enum {
    CAPACITY,
    LEVEL,
    FIRST_USE,
    RESOURCE,
    WEIGHT,
    HOLDS,
    ALPHA,
    OVERHEAD,
    HEADER,
    FIRST_ROUND,
    SECONDS,
    FIRST_MESSAGE,
    CODE,
    NBYTES,
    KINDS,
    MULTIPLE,
    FIRST_LOG,
    INPUTS
};
enum {
    BEGAN,
    ARRIVED,
    ENDED,
    MATCHED,
    BY,
    AT,
    PEER,
    MESSAGE,
    LOGGED,
    BUSY,
    CARRIED,
    LEVEL_BYTES,
    COUNTS,
    OUTPUTS
};

typedef struct {
    double time;
    uint64_t order;
    int kind, what;
    int64_t more;
} event;
typedef struct {
    int channel, thread[2], last, line_next, share; /* share: the first of its entries */
    int held_by;
    int32_t round[2];
    int64_t message, version;
    double nbytes, matched, left, rate, since;
    double tried; /* the rate that it may get; its rate, where it keeps that */
} flow;
typedef struct {
    int flow, resource, before, after, next;
    double weight;
} entry;
typedef struct {
    int sends, thread, next;
    int32_t round;
    int64_t message;
} side;
typedef struct {
    int segment, pending, current, logged, by, at, peer;
    int64_t round, stop, running, message;
    double began, arrived, matched;
} thread;

/* Things of one size; those given back are used again. */
typedef struct {
    char *items;
    size_t size;
    int used, held, *freed, spare;
} pool;

typedef struct {
    Py_buffer in[INPUTS], out[OUTPUTS];
    int taken_in, taken_out, depth, segments, nkinds, nthreads, nranks, nresources, nchannels;
    const double *capacity, *weight, *alpha, *overhead, *header, *seconds, *nbytes;
    const int *level, *resource, *code, *kinds;
    const signed char *holds;
    const int64_t *first_use, *first_round, *first_message, *multiple, *first_log;
    double *began, *arrived, *ended, *matched, *busy, *carried, *level_bytes;
    int *by, *at, *peer, *message, *logged;
    int64_t *counts;

    event *events;
    size_t nevents, most_events;
    uint64_t order;
    double now;
    thread *threads;
    int *ready, ready_first, ready_count;
    double *processor, *since;
    int *active;
    pool flows, entries, sides;
    int *line_first, *line_last, *wait_first, *wait_last;
    int *flowing_first, *flowing_last;
    int *dirty, ndirty;
    char *is_dirty;
    /* Of sharing: marks by epoch; messages that may get another rate, and what they use. */
    int epoch, *seen_resource, most_seen, *local, *members, nmembers, most_members;
    char *seen_flow;
    int *parts, nparts, most_parts, *growing, *starts, *places, most_places, *running_parts, *full;
    double *load, *left, *slowest;
    /* What a program does that is none: messages of unequal size. */
    int unequal, unequal_thread, unequal_round;
    double expected, got;
} loop;

/* ---- memory ---------------------------------------------------------------------------------- */

static int grown(void *pointer, size_t size, size_t number)
{
    void **memory = pointer, *more = realloc(*memory, size * (number ? number : 1));
    if (!more) {
        PyErr_NoMemory();
        return -1;
    }
    *memory = more;
    return 0;
}

static int made(void *pointer, size_t size, size_t number, int with)
{
    void **memory = pointer;
    if (grown(memory, size, number) < 0) {
        return -1;
    }
    memset(*memory, with, size * number);
    return 0;
}

/* A place in a pool; NONE, with an error set, where memory is out. */
static int take(pool *of)
{
    if (of->spare) {
        return of->freed[--of->spare];
    }
    if (of->used == of->held) {
        int held = of->held ? 2 * of->held : 1024;
        if (grown(&of->items, of->size, held) < 0 || grown(&of->freed, sizeof(int), held) < 0) {
            return NONE;
        }
        memset(of->items + of->size * of->held, 0, of->size * (held - of->held));
        of->held = held;
    }
    return of->used++;
}

static void give(pool *of, int place)
{
    of->freed[of->spare++] = place;
}

static inline flow *flow_at(loop *me, int place)
{
    return (flow *)me->flows.items + place;
}
static inline entry *entry_at(loop *me, int place)
{
    return (entry *)me->entries.items + place;
}
static inline side *side_at(loop *me, int place)
{
    return (side *)me->sides.items + place;
}

/* ---- events ---------------------------------------------------------------------------------- */

static inline int earlier(const event *a, const event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static int at(loop *me, double time, int kind, int what, int64_t more)
{
    if (me->nevents == me->most_events) {
        size_t most = me->most_events ? 2 * me->most_events : 1024;
        if (grown(&me->events, sizeof(event), most) < 0) {
            return -1;
        }
        me->most_events = most;
    }
    event new = {time, ++me->order, kind, what, more};
    size_t here = me->nevents++;
    while (here && earlier(&new, &me->events[(here - 1) / 2])) {
        me->events[here] = me->events[(here - 1) / 2];
        here = (here - 1) / 2;
    }
    me->events[here] = new;
    return 0;
}

static event soonest(loop *me)
{
    event first = me->events[0], last = me->events[--me->nevents];
    size_t here = 0, below;
    while ((below = 2 * here + 1) < me->nevents) {
        if (below + 1 < me->nevents && earlier(&me->events[below + 1], &me->events[below])) {
            below++;
        }
        if (!earlier(&me->events[below], &last)) {
            break;
        }
        me->events[here] = me->events[below];
        here = below;
    }
    me->events[here] = last;
    return first;
}

static void is_ready(loop *me, int which)
{
    me->ready[(me->ready_first + me->ready_count++) % me->nthreads] = which;
}

/* ---- busy times, the log --------------------------------------------------------------------- */

static void occupy(loop *me, int which)
{
    int rank = which / me->depth;
    if (!me->active[rank]++) {
        me->since[rank] = me->now;
    }
}

static void release(loop *me, int which)
{
    int rank = which / me->depth;
    if (!--me->active[rank]) {
        me->busy[rank] += me->now - me->since[rank];
    }
}

static void logged(loop *me, int which)
{
    thread *of = &me->threads[which];
    int64_t place = me->first_log[which] + of->logged++;
    me->began[place] = of->began;
    me->arrived[place] = of->arrived;
    me->ended[place] = me->now;
    me->matched[place] = of->matched;
    me->by[place] = of->by;
    me->at[place] = of->at;
    me->peer[place] = of->peer;
    me->message[place] = (int)of->message;
}

/* All messages of a round are complete; `done` is the last of them, NONE of none. */
static int computes(loop *me, int which, int done)
{
    thread *of = &me->threads[which];
    double seconds = me->seconds[of->running];
    of->arrived = me->now;
    of->by = NONE;
    if (done != NONE) {
        const flow *last = flow_at(me, done);
        of->by = last->thread[last->last];
        of->at = last->round[last->last];
        of->peer = last->thread[last->thread[0] == which] / me->depth;
        of->matched = last->matched;
        of->message = last->message;
    }
    if (seconds == 0) {
        logged(me, which);
        is_ready(me, which);
        return 0;
    }
    int rank = which / me->depth;
    double end = (me->now > me->processor[rank] ? me->now : me->processor[rank]) + seconds;
    me->processor[rank] = end;
    occupy(me, which);
    return at(me, end, COMPUTED, which, 0);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void changed(loop *me, int resource)
{
    if (!me->is_dirty[resource]) {
        me->is_dirty[resource] = 1;
        me->dirty[me->ndirty++] = resource;
    }
}

static int arrive(loop *me, int which)
{
    /* By value: what follows may take flows, and the pool may move. */
    const flow of = *flow_at(me, which);
    for (int64_t use = me->first_use[of.channel]; use < me->first_use[of.channel + 1]; use++) {
        me->carried[me->resource[use]] += me->weight[use] * of.nbytes;
    }
    for (int end = 0; end < 2; end++) {
        int thread_of = of.thread[end];
        release(me, thread_of);
        if (!--me->threads[thread_of].pending && computes(me, thread_of, which) < 0) {
            return -1;
        }
    }
    give(&me->flows, which);
    return 0;
}

static int flows_at(loop *me, int which, double rate)
{
    flow *of = flow_at(me, which);
    of->rate = of->tried = rate;
    of->version++;
    return at(me, me->now + of->left / rate, FINISH, which, of->version);
}

static int enter(loop *me, int which)
{
    flow_at(me, which)->since = me->now;
    int channel = flow_at(me, which)->channel, alone = 1, last = NONE;
    double rate = INFINITY;
    for (int64_t use = me->first_use[channel]; use < me->first_use[channel + 1]; use++) {
        if (!me->holds[use]) {
            continue;
        }
        int resource = me->resource[use], place = take(&me->entries);
        if (place == NONE) {
            return -1;
        }
        alone = alone && me->flowing_first[resource] == NONE;
        entry *of = entry_at(me, place);
        *of = (entry){which, resource, me->flowing_last[resource], NONE, NONE, me->weight[use]};
        if (of->before == NONE) {
            me->flowing_first[resource] = place;
        }
        else {
            entry_at(me, of->before)->after = place;
        }
        me->flowing_last[resource] = place;
        if (last == NONE) {
            flow_at(me, which)->share = place;
        }
        else {
            entry_at(me, last)->next = place;
        }
        last = place;
        if (me->capacity[resource] / me->weight[use] < rate) {
            rate = me->capacity[resource] / me->weight[use];
            flow_at(me, which)->held_by = resource;
        }
    }
    if (alone) {
        return flows_at(me, which, rate);
    }
    for (int place = flow_at(me, which)->share; place != NONE; place = entry_at(me, place)->next) {
        changed(me, entry_at(me, place)->resource);
    }
    return 0;
}

static int begin(loop *me, int which)
{
    flow *of = flow_at(me, which);
    int channel = of->channel, uses = 0;
    for (int64_t use = me->first_use[channel]; use < me->first_use[channel + 1]; use++) {
        uses |= me->holds[use];
    }
    if (of->left == 0 || !uses) {
        return arrive(me, which);
    }
    of->line_next = NONE;
    if (me->line_first[channel] != NONE) {
        flow_at(me, me->line_last[channel])->line_next = which;
        me->line_last[channel] = which;
        return 0;
    }
    me->line_first[channel] = me->line_last[channel] = which;
    return enter(me, which);
}

static int finish(loop *me, int which, int64_t version)
{
    flow *of = flow_at(me, which);
    if (of->version != version) {
        return 0;
    }
    of->version++;
    for (int place = of->share, next; place != NONE; place = next) {
        entry *use = entry_at(me, place);
        next = use->next;
        if (use->before == NONE) {
            me->flowing_first[use->resource] = use->after;
        }
        else {
            entry_at(me, use->before)->after = use->after;
        }
        if (use->after == NONE) {
            me->flowing_last[use->resource] = use->before;
        }
        else {
            entry_at(me, use->after)->before = use->before;
        }
        if (me->flowing_first[use->resource] != NONE) {
            changed(me, use->resource);
        }
        give(&me->entries, place);
    }
    int channel = of->channel, next = of->line_next;
    me->line_first[channel] = next;
    if (next != NONE && enter(me, next) < 0) {
        return -1;
    }
    return arrive(me, which);
}

static int post(loop *me, int which, int64_t message)
{
    int sends = me->code[message] & 1, channel = me->code[message] >> 1;
    int queue = channel * me->depth + which % me->depth, first = me->wait_first[queue];
    if (first == NONE || side_at(me, first)->sends == sends) {
        int place = take(&me->sides);
        if (place == NONE) {
            return -1;
        }
        *side_at(me, place) = (side){sends, which, NONE, me->threads[which].logged, message};
        if (me->wait_first[queue] == NONE) {
            me->wait_first[queue] = place;
        }
        else {
            side_at(me, me->wait_last[queue])->next = place;
        }
        me->wait_last[queue] = place;
        return 0;
    }
    const side other = *side_at(me, first);
    me->wait_first[queue] = other.next;
    give(&me->sides, first);
    double nbytes = me->nbytes[message];
    if (me->nbytes[other.message] != nbytes) {
        me->unequal = 1;
        me->unequal_thread = which;
        me->unequal_round = me->threads[which].logged;
        me->expected = nbytes;
        me->got = me->nbytes[other.message];
        return -1;
    }
    int place = take(&me->flows);
    if (place == NONE) {
        return -1;
    }
    flow *of = flow_at(me, place);
    int level = me->level[channel];
    of->channel = channel;
    of->thread[!sends] = which;
    of->round[!sends] = me->threads[which].logged;
    of->thread[sends] = other.thread;
    of->round[sends] = other.round;
    of->last = !sends;
    of->message = message;
    of->nbytes = nbytes;
    of->matched = of->since = me->now;
    of->left = nbytes + me->header[level];
    of->rate = of->tried = 0;
    of->share = of->held_by = NONE;
    occupy(me, which);
    occupy(me, other.thread);
    int64_t multiple = me->multiple[of->thread[0] / me->depth];
    me->counts[0] += multiple;
    me->counts[1]++;
    me->level_bytes[level] += nbytes * (double)multiple;
    if (me->alpha[level] != 0) {
        return at(me, me->now + me->alpha[level], BEGIN, place, 0);
    }
    return begin(me, place);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static int start(loop *me, int which)
{
    thread *of = &me->threads[which];
    int64_t first = me->first_message[of->running], stop = me->first_message[of->running + 1];
    int posting = 0;
    of->began = me->now;
    of->pending = (int)(stop - first);
    if (first == stop) {
        return computes(me, which, NONE);
    }
    for (int64_t message = first; message < stop && !posting; message++) {
        posting = me->overhead[me->level[me->code[message] >> 1]] != 0;
    }
    if (!posting) {
        for (int64_t message = first; message < stop; message++) {
            if (post(me, which, message) < 0) {
                return -1;
            }
        }
        return 0;
    }
    int rank = which / me->depth;
    double free = me->now > me->processor[rank] ? me->now : me->processor[rank];
    for (int64_t message = first; message < stop; message++) {
        free += me->overhead[me->level[me->code[message] >> 1]];
        if (at(me, free, POST, which, message) < 0) {
            return -1;
        }
        occupy(me, which);
    }
    me->processor[rank] = free;
    return 0;
}

static void rounds_of(loop *me, int which)
{
    thread *of = &me->threads[which];
    int64_t place = (int64_t)(which / me->depth) * me->nkinds + me->kinds[of->segment];
    of->round = me->first_round[place];
    of->stop = me->first_round[place + 1];
}

static int advance(loop *me)
{
    while (me->ready_count) {
        int which = me->ready[me->ready_first];
        thread *of = &me->threads[which];
        me->ready_first = (me->ready_first + 1) % me->nthreads;
        me->ready_count--;
        while (of->round == of->stop && of->segment + me->depth < me->segments) {
            of->segment += me->depth;
            rounds_of(me, which);
        }
        of->current = of->round < of->stop;
        if (!of->current) {
            continue;
        }
        of->running = of->round++;
        if (start(me, which) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- sharing --------------------------------------------------------------------------------- */

static int room_for(loop *me, int resources)
{
    if (resources > me->most_parts) {
        int most = 2 * resources;
        if (grown(&me->parts, sizeof(int), most) < 0 || grown(&me->growing, sizeof(int), most) < 0
            || grown(&me->starts, sizeof(int), most + 1) < 0
            || grown(&me->running_parts, sizeof(int), most) < 0
            || grown(&me->full, sizeof(int), most) < 0 || grown(&me->load, sizeof(double), most) < 0
            || grown(&me->left, sizeof(double), most) < 0
            || grown(&me->slowest, sizeof(double), most) < 0) {
            return -1;
        }
        me->most_parts = most;
    }
    return 0;
}

/* A message may get another rate; once is enough. */
static int comes_in(loop *me, int which)
{
    if (me->seen_flow[which]) {
        return 0;
    }
    if (me->nmembers == me->most_members) {
        int most = me->most_members ? 2 * me->most_members : 1024;
        if (grown(&me->members, sizeof(int), most) < 0) {
            return -1;
        }
        me->most_members = most;
    }
    me->seen_flow[which] = 1;
    me->members[me->nmembers++] = which;
    return 0;
}

/* All messages on resources where something changed. */
static int first_members(loop *me)
{
    if (me->flows.held > me->most_seen) {
        if (grown(&me->seen_flow, 1, me->flows.held) < 0) {
            return -1;
        }
        memset(me->seen_flow + me->most_seen, 0, me->flows.held - me->most_seen);
        me->most_seen = me->flows.held;
    }
    me->nmembers = 0;
    for (int i = 0; i < me->ndirty; i++) {
        me->is_dirty[me->dirty[i]] = 0;
        for (int place = me->flowing_first[me->dirty[i]]; place != NONE;
             place = entry_at(me, place)->after) {
            if (comes_in(me, entry_at(me, place)->flow) < 0) {
                return -1;
            }
        }
    }
    me->ndirty = 0;
    return 0;
}

/* What those that keep their rates leave of a resource. */
static double free_of(loop *me, int resource)
{
    double taken = 0;
    for (int place = me->flowing_first[resource]; place != NONE;
         place = entry_at(me, place)->after) {
        const entry *of = entry_at(me, place);
        if (!me->seen_flow[of->flow]) {
            taken += of->weight * flow_at(me, of->flow)->rate;
        }
    }
    return fmax(me->capacity[resource] - taken, 0.0);
}

/* fair_share.fair_rates of the members. */
static int fair_rates(loop *me)
{
    int nparts = 0, total = 0;
    me->epoch++;
    for (int i = 0; i < me->nmembers; i++) {
        flow_at(me, me->members[i])->tried = INFINITY;
        for (int use = flow_at(me, me->members[i])->share; use != NONE;
             use = entry_at(me, use)->next) {
            entry *of = entry_at(me, use);
            if (me->seen_resource[of->resource] != me->epoch) {
                me->seen_resource[of->resource] = me->epoch;
                if (room_for(me, nparts + 1) < 0) {
                    return -1;
                }
                me->parts[nparts] = of->resource;
                me->load[nparts] = 0;
                me->growing[nparts] = 0;
                me->left[nparts] = free_of(me, of->resource);
                me->slowest[nparts] = INFINITY;
                me->local[of->resource] = nparts++;
            }
            me->load[me->local[of->resource]] += of->weight;
            me->growing[me->local[of->resource]]++;
            total++;
        }
    }
    me->nparts = nparts;
    if (total > me->most_places) {
        if (grown(&me->places, sizeof(int), 2 * total) < 0) {
            return -1;
        }
        me->most_places = 2 * total;
    }
    if (!nparts) {
        return 0;
    }
    me->starts[0] = 0;
    for (int part = 0; part < nparts; part++) {
        me->starts[part + 1] = me->starts[part] + me->growing[part];
        me->running_parts[part] = me->starts[part];
    }
    for (int i = 0; i < me->nmembers; i++) {
        for (int use = flow_at(me, me->members[i])->share; use != NONE;
             use = entry_at(me, use)->next) {
            me->places[me->running_parts[me->local[entry_at(me, use)->resource]]++] =
                me->members[i];
        }
    }
    int running = nparts;
    for (int part = 0; part < nparts; part++) {
        me->running_parts[part] = part;
    }
    while (running) {
        double level = INFINITY;
        int nfull = 0;
        for (int i = 0; i < running; i++) {
            level = fmin(level, me->left[me->running_parts[i]] / me->load[me->running_parts[i]]);
        }
        for (int i = 0; i < running; i++) {
            int part = me->running_parts[i];
            if (me->left[part] <= level * me->load[part] * (1 + TOLERANCE)) {
                me->full[nfull++] = part;
            }
        }
        for (int i = 0; i < nfull; i++) {
            for (int k = me->starts[me->full[i]]; k < me->starts[me->full[i] + 1]; k++) {
                flow *held = flow_at(me, me->places[k]);
                if (held->tried < INFINITY) {
                    continue;
                }
                held->tried = level;
                held->held_by = me->parts[me->full[i]];
                me->slowest[me->full[i]] = fmin(me->slowest[me->full[i]], level);
                for (int use = held->share; use != NONE; use = entry_at(me, use)->next) {
                    entry *of = entry_at(me, use);
                    int other = me->local[of->resource];
                    me->growing[other]--;
                    me->load[other] -= of->weight;
                    me->left[other] = fmax(me->left[other] - of->weight * level, 0.0);
                }
            }
        }
        int kept = 0;
        for (int i = 0; i < running; i++) {
            if (me->growing[me->running_parts[i]]) {
                me->running_parts[kept++] = me->running_parts[i];
            }
        }
        if (kept == running) {
            PyErr_SetString(PyExc_ArithmeticError, "expected numeric rates");
            return -1;
        }
        running = kept;
    }
    return 0;
}

/* Those that keep their rates, and may not, given rates of others on a resource, come in. */
static int unheld_come_in(loop *me, int part)
{
    int resource = me->parts[part];
    double load = 0, fastest = 0;
    for (int place = me->flowing_first[resource]; place != NONE;
         place = entry_at(me, place)->after) {
        double rate = flow_at(me, entry_at(me, place)->flow)->tried;
        load += entry_at(me, place)->weight * rate;
        fastest = fmax(fastest, rate);
    }
    int full = load >= me->capacity[resource] * (1 - TOLERANCE);
    for (int place = me->flowing_first[resource]; place != NONE;
         place = entry_at(me, place)->after) {
        int which = entry_at(me, place)->flow;
        const flow *of = flow_at(me, which);
        if (!me->seen_flow[which]
            && (of->rate > me->slowest[part] * (1 + TOLERANCE)
                || (of->held_by == resource && !(full && of->rate >= fastest * (1 - TOLERANCE))))
            && comes_in(me, which) < 0) {
            return -1;
        }
    }
    return 0;
}

/* fair_share.new_rates. */
static int new_rates(loop *me)
{
    int before;
    if (first_members(me) < 0) {
        return -1;
    }
    do {
        before = me->nmembers;
        if (fair_rates(me) < 0) {
            return -1;
        }
        for (int part = 0; part < me->nparts; part++) {
            if (unheld_come_in(me, part) < 0) {
                return -1;
            }
        }
    } while (me->nmembers > before);
    for (int i = 0; i < me->nmembers; i++) {
        me->seen_flow[me->members[i]] = 0;
    }
    return 0;
}

/* math.isclose with this relative tolerance. */
static int close_to(double one, double other)
{
    if (one == other) {
        return 1;
    }
    if (isinf(one) || isinf(other)) {
        return 0;
    }
    double apart = fabs(other - one);
    return apart <= fabs(ALIKE * other) || apart <= fabs(ALIKE * one);
}

static int share(loop *me)
{
    if (!me->ndirty) {
        return 0;
    }
    if (new_rates(me) < 0) {
        return -1;
    }
    for (int i = 0; i < me->nmembers; i++) {
        flow *of = flow_at(me, me->members[i]);
        if (close_to(of->tried, of->rate)) {
            of->tried = of->rate;
            continue;
        }
        of->left = fmax(of->left - of->rate * (me->now - of->since), 0.0);
        of->since = me->now;
        if (flows_at(me, me->members[i], of->tried) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int handled(loop *me, event *due)
{
    switch (due->kind) {
    case BEGIN: return begin(me, due->what);
    case FINISH: return finish(me, due->what, due->more);
    case POST: release(me, due->what); return post(me, due->what, due->more);
    default:
        release(me, due->what);
        logged(me, due->what);
        is_ready(me, due->what);
        return 0;
    }
}

static int report_progress(loop *me, PyObject *progress)
{
    PyObject *answer = PyObject_CallFunction(progress, "Ld", (long long)me->counts[1], me->now);
    Py_XDECREF(answer);
    return answer && PyErr_CheckSignals() == 0 ? 0 : -1;
}

static int go(loop *me, PyObject *progress)
{
    long steps = 0;
    for (int which = 0; which < me->nthreads; which++) {
        is_ready(me, which);
    }
    if (advance(me) < 0 || share(me) < 0) {
        return -1;
    }
    while (me->nevents) {
        me->now = me->events[0].time;
        double limit = me->now * (1 + TOGETHER);
        while (me->nevents && me->events[0].time <= limit) {
            event due = soonest(me);
            if (!(++steps % OFTEN) && report_progress(me, progress) < 0) {
                return -1;
            }
            if (handled(me, &due) < 0 || advance(me) < 0) {
                return -1;
            }
        }
        if (share(me) < 0) {
            return -1;
        }
    }
    return 0;
}

static int memory(loop *me)
{
    size_t queues = (size_t)me->nchannels * me->depth;
    me->flows.size = sizeof(flow);
    me->entries.size = sizeof(entry);
    me->sides.size = sizeof(side);
    return made(&me->threads, sizeof(thread), me->nthreads, 0) < 0
                   || made(&me->ready, sizeof(int), me->nthreads, 0) < 0
                   || made(&me->processor, sizeof(double), me->nranks, 0) < 0
                   || made(&me->since, sizeof(double), me->nranks, 0) < 0
                   || made(&me->active, sizeof(int), me->nranks, 0) < 0
                   || made(&me->line_first, sizeof(int), me->nchannels, 0xff) < 0
                   || made(&me->line_last, sizeof(int), me->nchannels, 0xff) < 0
                   || made(&me->wait_first, sizeof(int), queues, 0xff) < 0
                   || made(&me->wait_last, sizeof(int), queues, 0xff) < 0
                   || made(&me->flowing_first, sizeof(int), me->nresources, 0xff) < 0
                   || made(&me->flowing_last, sizeof(int), me->nresources, 0xff) < 0
                   || made(&me->dirty, sizeof(int), me->nresources, 0) < 0
                   || made(&me->is_dirty, 1, me->nresources, 0) < 0
                   || made(&me->seen_resource, sizeof(int), me->nresources, 0) < 0
                   || made(&me->local, sizeof(int), me->nresources, 0) < 0
               ? -1
               : 0;
}

static void freed(loop *me)
{
    void *all[] = {me->events,        me->threads,       me->ready,       me->processor,
                   me->since,         me->active,        me->flows.items, me->flows.freed,
                   me->entries.items, me->entries.freed, me->sides.items, me->sides.freed,
                   me->line_first,    me->line_last,     me->wait_first,  me->wait_last,
                   me->flowing_first, me->flowing_last,  me->dirty,       me->is_dirty,
                   me->seen_resource, me->seen_flow,     me->local,       me->members,
                   me->parts,         me->growing,       me->starts,      me->places,
                   me->running_parts, me->full,          me->load,        me->left,
                   me->slowest};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
    for (int i = 0; i < me->taken_in; i++) {
        PyBuffer_Release(&me->in[i]);
    }
    for (int i = 0; i < me->taken_out; i++) {
        PyBuffer_Release(&me->out[i]);
    }
}

static int taken(loop *me, PyObject *inputs, PyObject *outputs)
{
    if (PyTuple_GET_SIZE(inputs) != INPUTS || PyTuple_GET_SIZE(outputs) != OUTPUTS) {
        PyErr_SetString(PyExc_TypeError, "expected other arrays");
        return -1;
    }
    for (; me->taken_in < INPUTS; me->taken_in++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(inputs, me->taken_in), &me->in[me->taken_in],
                               PyBUF_SIMPLE)
            < 0) {
            return -1;
        }
    }
    for (; me->taken_out < OUTPUTS; me->taken_out++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(outputs, me->taken_out), &me->out[me->taken_out],
                               PyBUF_WRITABLE)
            < 0) {
            return -1;
        }
    }
    me->capacity = me->in[CAPACITY].buf, me->level = me->in[LEVEL].buf;
    me->first_use = me->in[FIRST_USE].buf, me->resource = me->in[RESOURCE].buf;
    me->weight = me->in[WEIGHT].buf, me->holds = me->in[HOLDS].buf, me->alpha = me->in[ALPHA].buf;
    me->overhead = me->in[OVERHEAD].buf, me->header = me->in[HEADER].buf;
    me->first_round = me->in[FIRST_ROUND].buf, me->seconds = me->in[SECONDS].buf;
    me->first_message = me->in[FIRST_MESSAGE].buf, me->code = me->in[CODE].buf;
    me->nbytes = me->in[NBYTES].buf, me->kinds = me->in[KINDS].buf;
    me->multiple = me->in[MULTIPLE].buf, me->first_log = me->in[FIRST_LOG].buf;
    me->began = me->out[BEGAN].buf, me->arrived = me->out[ARRIVED].buf;
    me->ended = me->out[ENDED].buf, me->matched = me->out[MATCHED].buf, me->by = me->out[BY].buf;
    me->at = me->out[AT].buf, me->peer = me->out[PEER].buf, me->message = me->out[MESSAGE].buf;
    me->logged = me->out[LOGGED].buf, me->busy = me->out[BUSY].buf;
    me->carried = me->out[CARRIED].buf, me->level_bytes = me->out[LEVEL_BYTES].buf;
    me->counts = me->out[COUNTS].buf;
    me->nresources = (int)(me->in[CAPACITY].len / sizeof(double));
    me->nchannels = (int)(me->in[LEVEL].len / sizeof(int));
    me->segments = (int)(me->in[KINDS].len / sizeof(int));
    me->nranks = (int)(me->in[MULTIPLE].len / sizeof(int64_t));
    me->nthreads = me->nranks * me->depth;
    me->nkinds =
        me->nranks ? (int)((me->in[FIRST_ROUND].len / sizeof(int64_t) - 1) / me->nranks) : 0;
    return 0;
}

static PyObject *run(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *inputs, *outputs, *progress, *answer = NULL;
    loop *me = calloc(1, sizeof *me);
    if (!me) {
        return PyErr_NoMemory();
    }
    if (!PyArg_ParseTuple(args, "O!O!iO", &PyTuple_Type, &inputs, &PyTuple_Type, &outputs,
                          &me->depth, &progress)
        || taken(me, inputs, outputs) < 0 || memory(me) < 0) {
        goto done;
    }
    for (int which = 0; which < me->nthreads; which++) {
        me->threads[which].segment = which % me->depth;
        rounds_of(me, which);
    }
    if (go(me, progress) < 0) {
        if (me->unequal) {
            answer =
                Py_BuildValue("iidd", me->unequal_thread, me->unequal_round, me->expected, me->got);
        }
        goto done;
    }
    for (int which = 0; which < me->nthreads && !answer; which++) {
        me->logged[which] = me->threads[which].logged;
        if (me->threads[which].current) {
            answer =
                Py_BuildValue("iii", which, me->threads[which].logged, me->threads[which].pending);
        }
    }
    if (!answer && !PyErr_Occurred()) {
        answer = Py_NewRef(Py_None);
    }
done:
    freed(me);
    free(me);
    return answer;
}

static PyMethodDef methods[] = {{"run", run, METH_VARARGS,
                                 "run(inputs, outputs, depth, progress): let time pass. Returns "
                                 "None; (thread, round, pending) of "
                                 "the\nfirst thread that waits for ever; or (thread, round, "
                                 "expected, got) where sizes differ."},
                                {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT,
                                    "_events",
                                    "The event loop of the simulator, compiled.",
                                    -1,
                                    methods,
                                    NULL,
                                    NULL,
                                    NULL,
                                    NULL};

PyMODINIT_FUNC PyInit__events(void)
{
    return PyModule_Create(&module);
}
