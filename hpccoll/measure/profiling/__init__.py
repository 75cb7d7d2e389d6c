"""Profile of the collectives of a program: recorded on every rank, then joined.

    watched   a subclass of a communicator class that records its calls
    record    the record of a rank, and its file
    observer  recorder of this process, and the clock offsets; gathered, or written
    phases    activities inside of calls, from the recorded moments
    joined    the records of all ranks: matching of calls, wait times
    stragglers  the last rank of each call: how often, and how late
    profile   summary: a row for each kind of call
    against   native times of a sample of the same calls

Nothing here is loaded unless ``HPCCOLL_PROFILE`` or ``HPCCOLL_TRACE`` is set; a communicator's
class is chosen when it is made, so other programs have no overhead.
"""
