"""What the collectives of a program did: counted and timed on every rank, then joined.

    watched   a class of communicators, like another one, whose calls are noted
    record    what is noted on a rank, and its file
    observer  what this process notes, and the clocks' differences; gathered, or written
    phases    what a rank did inside of its calls, by the moments that it noted
    joined    the records of all ranks: which calls belong together, who waited for whom
    stragglers  who came last, how often, and by how much
    profile   what they amount to: a row for each kind of call
    against   the same calls served by the MPI library, on a sample

Nothing here is loaded unless ``HPCCOLL_PROFILE`` or ``HPCCOLL_TRACE`` asks for it; a communicator's
class is chosen when it is made, so nobody else pays.
"""
