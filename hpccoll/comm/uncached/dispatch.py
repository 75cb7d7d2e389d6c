"""Entry of uncached blocking and nonblocking calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpccoll.calls.memory import as_host_arrays
from hpccoll.comm.methods import Method
from hpccoll.comm.promise import check_promise
from hpccoll.comm.uncached.blocking import serve_blocking
from hpccoll.comm.uncached.nonblocking import begin
from hpccoll.comm.uncached.steps import serve_arrays
from hpccoll.ir.methods import BLOCKING

if TYPE_CHECKING:
    from hpccoll.comm.base import Base


def serve(comm: Base, method: Method, args: tuple[Any, ...]) -> Any:
    """Run an uncached call."""
    with comm._check_alive().call_guard:
        check_promise(method, args, comm._device)
        arrays = as_host_arrays(args, len(method.buffers))
        if arrays:
            return serve_arrays(comm, method, arrays)
        return (serve_blocking if method.form == BLOCKING else begin)(comm, method, args)
