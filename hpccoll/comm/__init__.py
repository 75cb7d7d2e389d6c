"""``hpccoll.Comm``: thin methods over one base; the only memory of calls is ``cache``."""

from hpccoll.comm.communicator import Comm

__all__ = ["Comm"]
