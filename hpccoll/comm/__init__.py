"""``hpccoll.Comm``: an ``MPI.Intracomm`` of thin methods over one base.

``base`` dispatches calls. ``blocking``, ``nonblocking``, ``persistent`` and ``objects`` derive from
it. ``methods`` is the table of collectives, ``cache`` the cache of calls. A new collective needs a
line in ``methods``, a resolver in :mod:`hpccoll.calls.resolve` and a method in each subclass.
"""

from hpccoll.comm.communicator import Comm
from hpccoll.comm.requests import Request

__all__ = ["Comm", "Request"]
