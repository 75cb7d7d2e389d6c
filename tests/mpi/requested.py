"""What the tests of requests share: sums of every rank's numbers, and who serves them."""

import numpy

from hpccoll.algorithms import ALGORITHMS

#: An algorithm of hpccoll's for every collective.
OURS = {collective: next(iter(table)) for collective, table in ALGORITHMS.items()}


def mine(comm, count=4):
    """This rank's contribution."""
    return numpy.arange(count) + 10. * comm.rank


def summed(comm, count=4):
    """The sum of all contributions."""
    return comm.size * numpy.arange(count) + 10. * sum(range(comm.size))


def start(request):
    """Start a persistent request; return it."""
    request.Start()
    return request
