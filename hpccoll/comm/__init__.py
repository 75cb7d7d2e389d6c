"""``hpccoll.Comm``: an ``MPI.Intracomm`` of thin methods over one base.

``base`` has the way of a call; ``blocking``, ``nonblocking``, ``persistent`` and ``objects`` are
siblings over it, ``methods`` is the table of collectives, and ``cache`` the only memory of calls;
``nccl`` serves those that somebody wants NCCL for. A
new collective is a line in ``methods``, a resolver in :mod:`hpccoll.calls.resolve` and a method in
each sibling.
"""

from hpccoll.comm.communicator import Comm
from hpccoll.comm.requests import Request

__all__ = ["Comm", "Request"]
