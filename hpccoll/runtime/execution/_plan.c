/* Checks of compiled plans, so that no bounds are checked while they run. */
#include "_plan.h"

static int inside(const CompiledPlan *plan, int64_t address, int64_t nbytes, int64_t open)
{
    int64_t base = BASE(address), offset = OFFSET(address);
    if (address < 0 || base >= BASES || nbytes < 0 || (base == CELL && open < 0)) {
        return 0;
    }
    int64_t size = base == CELL ? open : plan->sizes[base];
    return nbytes <= size && offset <= size - nbytes;
}

/* Return 1 if a message of a size fits a channel's cells, or its memory can be read. */
static int fits_channel(const Channel *channel, int64_t nbytes)
{
    return channel->process || (nbytes <= channel->cell_bytes && nbytes <= LARGEST);
}

/* Check every instruction; return NULL or an error text. */
const char *check_plan(CompiledPlan *plan)
{
    int64_t open = -1, open_channel = -1, posted = 0, batches = 0;
    int under_way = 0;
    plan->sends = 0;
    for (Py_ssize_t at = 0; at < plan->length; at++) {
        const int64_t *step = plan->code + at * WIDTH;
        if ((step[0] == SEND || step[0] == TAKE || step[0] == TAKEN)
            && (step[2] < 0 || step[2] >= plan->channel_count)) {
            return "an unknown channel";
        }
        if (posted && step[0] != POST && step[0] != START) {
            return "messages of a batch that is not started";
        }
        switch (step[0]) {
        case END:
            if (at != plan->length - 1 || open >= 0 || under_way) {
                return "an end before its last instruction";
            }
            return NULL;
        case COPY:
            if (!inside(plan, step[2], step[4], -1) || !inside(plan, step[3], step[4], open)) {
                return "a copy out of bounds";
            }
            break;
        case REDUCE: {
            int64_t size = plan->kernel.itemsize;
            if (!size) {
                return "a reduction without a kernel";
            }
            if (step[6] < 0 || step[6] > INT64_MAX / size) {
                return "a reduction of too many elements";
            }
            if (step[2]
                && (plan->kernel.half == NULL || step[2] < 0 || step[2] >= 2 * ROUNDED
                    || step[6] > plan->accumulator_bytes / 4)) {
                return "an invalid use of the accumulator";
            }
            if (!inside(plan, step[3], step[6] * size, -1)
                || !inside(plan, step[4], step[6] * size, open)
                || !inside(plan, step[5], step[6] * size, open) || OFFSET(step[3]) % size
                || OFFSET(step[4]) % size || OFFSET(step[5]) % size) {
                return "a reduction out of bounds";
            }
            break;
        }
        case SEND:
            if (!inside(plan, step[3], step[4], -1)
                || !fits_channel(&plan->channels[step[2]], step[4])) {
                return "a message out of bounds";
            }
            plan->sends++;
            break;
        case FLUSH:
        case NOTE: break;
        case TAKE: /* a message that is not in its cell is received at its landing */
            if (open >= 0 || !inside(plan, step[3], step[4], -1)
                || !fits_channel(&plan->channels[step[2]], step[4])) {
                return "a message out of bounds";
            }
            open = step[4];
            open_channel = step[2];
            break;
        case TAKEN:
            if (open < 0 || open_channel != step[2]) {
                return "a release of a message that was not taken";
            }
            open = -1;
            break;
        case POST:
            if (open >= 0 || under_way || !inside(plan, step[3], step[4], -1)) {
                return "a message out of bounds";
            }
            posted++;
            break;
        case START:
            if (!posted || step[2] != batches) {
                return "a batch of no messages, or of another number";
            }
            posted = 0;
            plan->remote = under_way = 1;
            break;
        case AWAIT:
            if (open >= 0 || !under_way || step[2] != batches++) {
                return "a wait for a batch that was not started";
            }
            under_way = 0;
            break;
        default: return "an unknown instruction";
        }
    }
    return "no end";
}

/* Compute the contents of the words of its messages, in addition to their numbers. */
void mark_messages(CompiledPlan *plan)
{
    for (int64_t *step = plan->code; step[0] != END; step += WIDTH) {
        if (step[0] == SEND || step[0] == TAKE) {
            step[5] = step[4] ^ (plan->call_hash.value & LARGEST);
        }
    }
}
