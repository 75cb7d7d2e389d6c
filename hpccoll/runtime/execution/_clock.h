/* The machine's clock in nanoseconds. */
#ifndef HPCCOLL_CLOCK_H
#define HPCCOLL_CLOCK_H

#include "_python.h" /* first: it asks for all of POSIX */
#include <time.h>

static inline int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Return the time of the kernel's last tick, at most some milliseconds old: a precise read takes as
 * long as a small collective. */
static inline int64_t last_tick(void)
{
#ifdef CLOCK_MONOTONIC_COARSE
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
#else
    return nanoseconds();
#endif
}

#endif
