"""Profile of the collectives of a program: recorded on every rank, then joined.

    profiled  a subclass of a communicator class that records its calls
    record    the record of a rank, and its file
    observer  recorder of this process, and the clock offsets; gathered, or written
    phases    activities inside of calls, from the recorded phases
    merge     the records of all ranks: matching of calls, wait times
    profile   summary: a row for each kind of call; as text

Nothing here is loaded unless ``HPCCOLL_PROFILE`` or ``HPCCOLL_TRACE`` is set; a communicator's
class is chosen when it is made, so other programs have no overhead.
"""
