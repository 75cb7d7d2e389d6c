"""``hpccoll.Comm``: an ``MPI.Intracomm`` of thin methods over one base.

``base`` dispatches calls. ``blocking``, ``nonblocking``, ``persistent`` and ``objects`` derive from
it. ``methods`` reads the table of collectives, ``cache`` is the cache of calls. A new collective
needs a row in :mod:`hpccoll.ir.methods`, a resolver in :mod:`hpccoll.calls.resolve` and a method in
each subclass.

A program that calls no collective loads a small part of hpccoll: modules of the class import inside
functions what only an uncached call needs, which is below ``uncached``.
``tests/unit/comm/test_communicator_start.py`` counts the modules.
"""

from typing import TYPE_CHECKING

from hpccoll.comm.communicator import Comm

if TYPE_CHECKING:
    from hpccoll.comm.requests import Request as Request
else:
    def __getattr__(name):
        if name != "Request":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from hpccoll.comm.requests import Request
        return Request

__all__ = ["Comm", "Request"]
