"""Profile of the collectives of a program: recorded on every rank, then joined.

    record    the record of a rank, from the ring of events, and its file
    observer  the observed communicators, and the clock offsets; gathered, or written
    phases    activities inside of calls, from the recorded phases
    merge     the records of all ranks: matching of calls, wait times
    profile   summary: a row for each kind of call; as text

Nothing here is loaded unless ``HPCCOLL_PROFILE`` or ``HPCCOLL_TRACE`` is set; a communicator's
class is chosen when it is made, so other programs have no overhead.
"""
