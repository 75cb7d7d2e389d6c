/* Channels of shared memory, as their two ranks see them; see hpccoll/transport/shm/channels.py,
 * which has the same numbers. */
#ifndef HPCCOLL_CHANNELS_H
#define HPCCOLL_CHANNELS_H

#include "_python.h"
#include "_words.h"

/* The words of a channel. */
#define PLACES 4
#define SMALL 1024 /* bytes of a small cell */
/* Words behind those of `taken`: ASLEEP while the receiver sleeps for a message, or the sender for
 * a cell. It is 1 in both halves, one of which is the futex. Then the receiver's costs of reads of
 * the sender's memory, and of copies out of cells, in ps per byte. */
enum { NO_MESSAGE = PLACES, NO_CELL, READ_COST, TAKE_COST };
#define SIZE_BITS 24
/* Sizes, and values mixed into them, do not use their highest bit. */
#define LARGEST (((int64_t)1 << (SIZE_BITS - 1)) - 1)
/* In the place of the size: the message is not in its cell. The words of its place in the line, at
 * these distances, say where it is, its bytes and its call hash. */
#define NOT_IN_CELL (((int64_t)1 << SIZE_BITS) - 1)
enum { WHERE = PLACES, NBYTES = 2 * PLACES, CALL_HASH = 3 * PLACES };

/* Numbers of the last messages. */
typedef struct {
    PyObject_HEAD
    long long sent, received;
} Counters;

typedef struct {
    Counters *counters;
    Word *line, *taken;
    char *small, *cells;
    int64_t cell_bytes;
    int64_t process;  /* number of the process of the peer; 0 if its memory cannot be read */
    int64_t *regions; /* registered memory: number of rows; the words of a row; the rows .. */
    int64_t column;   /* .. with the address, here, of the peer's part in this column */
} Channel;

/* Words of a row of registered memory: address and bytes of this rank's part, then, by rank of the
 * node, the addresses of all parts in this process. */
enum { REGION_START, REGION_BYTES, REGION_PARTS };

/* Return the cell of a message, by its number and its size. */
static inline char *cell_of(const Channel *channel, int64_t number, int64_t nbytes)
{
    int64_t place = number & (PLACES - 1);
    if (nbytes <= SMALL) {
        return channel->small + place * SMALL;
    }
    return channel->cells + place * channel->cell_bytes;
}

#endif
