/* The ring of recorded moments; see hpccoll/runtime/events/phase_events.py. */
#ifndef HPCCOLL_MOMENTS_H
#define HPCCOLL_MOMENTS_H

#include "_clock.h"

/* Numbers of a moment. */
enum { MOMENT = 3 };

/* Record a moment in a ring of `kept` rows, a power of two, behind a row with their number. */
static inline void note_moment(int64_t *moments, int64_t kept, int64_t where, int64_t what)
{
    int64_t *moment = moments + MOMENT * (1 + (moments[0]++ & (kept - 1)));
    moment[0] = where;
    moment[1] = what;
    moment[2] = nanoseconds();
}

#endif
