"""A program under ``hpccoll run``, without the command line: its modules take 20 ms.

``MPI.COMM_WORLD`` and ``MPI.COMM_SELF`` become :class:`hpccoll.Comm` when the program imports
``mpi4py.MPI``, so settings of ``mpi4py.rc`` count, and a program without MPI does not start it.
Otherwise it works as ``python -m mpi4py``: ``sys.argv``, ``sys.path`` and ``__main__`` are those of
the program, and an uncaught exception or a nonzero exit status aborts the job.
"""

from __future__ import annotations

import copyreg
import os
import sys
import time
from collections.abc import Callable, MutableMapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from hpccoll.errors import (
    ArgumentError,
    BrokenCommunicatorError,
    CollectiveTimeout,
    HpccollError,
    MpiLibraryError,
    PeerLost,
)
from hpccoll.machine.launcher import launcher_rank, not_loaded, require_mpi

REPLACED = "COMM_WORLD", "COMM_SELF"
#: Exit status for options that do not fit, as of the command line.
BAD_OPTIONS = 2
#: Seconds for threads and exit handlers of a failed program, before the job is aborted.
GRACE = 30.0
#: Seconds before rank 1 prints an error; additional seconds per rank, and their maximum; additional
#: seconds for an error that another rank has caused.
FIRST_TURN, TURN, LAST_TURN, SECOND_HAND = 0.5, 0.05, 3.0, 1.0


class Importer:
    """Import hook: sets hpccoll's communicators in ``mpi4py.MPI`` after its import."""

    def __init__(self, topology: str | None):
        self.topology = topology

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None):
        if name != "mpi4py.MPI":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        try:
            spec = next(filter(None, (f.find_spec(name, path, target) for f in others)), None)
        except RuntimeError as error:
            raise not_loaded(error) from error
        if spec is not None and spec.loader is not None:
            create, execute = spec.loader.create_module, spec.loader.exec_module

            def create_module(spec: ModuleSpec) -> ModuleType | None:
                try:
                    return create(spec)
                except ImportError as error:
                    raise not_loaded(error) from error

            def exec_module(module: ModuleType) -> None:
                def load() -> ModuleType:
                    execute(module)
                    return module

                adopt(require_mpi(steps=True, load=load), self.topology)

            # Type stubs do not allow it, but a loader's methods may be replaced for one module.
            loader: Any = spec.loader
            loader.create_module, loader.exec_module = create_module, exec_module
        return spec


class Variables:
    """Import hook: sets torchrun's environment variables before a rank imports ``torch``."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> None:
        # A single rank needs them, too; torchrun has set them for its processes.
        if name == "torch" and (launcher_rank()[1] > 1 or "RANK" not in os.environ):
            MPI = require_mpi()
            if MPI.Is_initialized() and not MPI.Is_finalized():
                set_variables()


def adopt(MPI: Any, topology: str | None = None) -> None:
    """Replace the predefined communicators of ``mpi4py.MPI`` once MPI runs."""
    if MPI.Is_initialized():
        _replace(MPI, topology)
        return
    # With ``mpi4py.rc.initialize = False`` the program starts MPI itself.
    for name in ("Init", "Init_thread"):
        setattr(MPI, name, _start_function(getattr(MPI, name), MPI, topology))


def _start_function(start: Callable, MPI: Any, topology: str | None) -> Callable:
    """Return a function that starts MPI and then replaces the communicators."""
    def start_and_replace(*arguments: Any, **named: Any) -> Any:
        result = start(*arguments, **named)
        _replace(MPI, topology)
        return result

    return start_and_replace


def _replace(MPI: Any, topology: str | None) -> None:
    from hpccoll.comm.communicator import Comm  # needs mpi4py.MPI
    try:
        world = Comm(MPI.COMM_WORLD, topology)
    except ArgumentError as error:  # a layout of another number of ranks; raised on all ranks
        if not MPI.COMM_WORLD.Get_rank():
            print(f"hpccoll: run: {error}", file=sys.stderr)
        sys.exit(BAD_OPTIONS)
    MPI.COMM_WORLD = world
    MPI.COMM_SELF = Comm(MPI.COMM_SELF)
    # mpi4py pickles every object with such a handle by the name of its own object. The class of the
    # world is a subclass of ``Comm`` if calls are recorded.
    for cls in (Comm, type(MPI.COMM_WORLD), MPI.Comm, MPI.Intracomm):
        copyreg.pickle(cls, _reduce)


def _reduce(comm: Any):
    """Pickle predefined communicators by name, as mpi4py does, and others with their handles."""
    for name in REPLACED:
        predefined = getattr(sys.modules["mpi4py.MPI"], name)
        if comm == predefined:
            return ((_predefined_comm, (name,)) if comm is predefined
                    else (type(comm), (predefined,)))
    return comm.__reduce_ex__(4)


def _predefined_comm(name: str):
    from mpi4py import MPI
    return getattr(MPI, name)


def run_program(kind: str, words: Sequence[str], topology: str | None = None,
                end: Callable[[], object] = bool) -> None:
    """Run a program; an error of it aborts the job.

    Args:
        topology: layout to assume for ``COMM_WORLD``.
        end: called if the program has ended well.
    """
    if "mpi4py.MPI" in sys.modules:
        adopt(sys.modules["mpi4py.MPI"], topology)
    else:
        sys.meta_path.insert(0, Importer(topology))
    sys.meta_path.insert(0, Variables())
    try:
        execute(kind, *words)
    except SystemExit as stop:
        if stop.code:
            _abort_with(stop)
            _limit(stop.code if isinstance(stop.code, int) else 1)
            raise
        end()
        raise
    except BaseException as error:
        _fail(error)
    end()


def execute(kind: str, name: str, *arguments: str) -> None:
    """Run a script (``kind`` is empty), a module (``-m``) or code (``-c``) as Python does."""
    if kind == "-c":
        _start("", "-c", *arguments)
        _run(name, "<string>")
    elif kind == "-m":
        _start(os.getcwd(), name, *arguments)
        import runpy
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif _is_importable(name):
        import runpy
        _start(None, name, *arguments)
        # Absolute, because runpy puts it on the path, and the program may change directory.
        runpy.run_path(os.path.abspath(name), run_name="__main__")
    else:
        _start(os.path.dirname(os.path.realpath(name)), name, *arguments)
        path = os.path.abspath(name)
        loader = SourceFileLoader("__main__", path)
        _run(loader.get_data(path), path, __file__=path, __loader__=loader, __cached__=None)


def _is_importable(path: str) -> bool:
    """Return True for a directory or an archive, with a ``__main__.py``."""
    from pkgutil import get_importer
    return get_importer(path) is not None


def _run(source: str | bytes, path: str, **attributes: Any) -> None:
    """Run source text as ``__main__``, which stays for threads and exit handlers."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(attributes)
    exec(compile(source, path, "exec", dont_inherit=True), vars(main))


def _start(place: str | None, *argv: str) -> None:
    """Set the program's arguments, and the first folder of its import path."""
    sys.argv[:] = argv
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[:1] = [] if place is None else [place]


def _fail(error: BaseException) -> NoReturn:
    """Show the traceback from the program's first line on, and abort the job at exit."""
    if isinstance(error, ModuleNotFoundError) and error.name == "mpi4py":
        error = not_loaded(error)
    if isinstance(error, MpiLibraryError):
        from hpccoll.cli.ranks import without_mpi
        # No rank waits for this one: none knows of others.
        sys.exit(without_mpi(error))
    import runpy
    here = __file__, runpy.run_path.__code__.co_filename
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in here:
        trace = trace.tb_next
    if isinstance(error, HpccollError):
        time.sleep(_turn(error, launcher_rank()[0]))
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    status = 130 if isinstance(error, KeyboardInterrupt) else 1
    _abort_with(status)
    _limit(status)
    sys.exit(status)


def _turn(error: HpccollError, rank: int) -> float:
    """Return the seconds after which a rank shows an error that other ranks may have as well.

    The first rank that shows it aborts the job, which ends the others before their turn. Ranks
    that wait report at once: each has another view. A rank that only learns that a call failed
    elsewhere leaves the first turn to that rank.
    """
    if isinstance(error, (CollectiveTimeout, PeerLost)):
        return 0.0
    elsewhere = isinstance(error, BrokenCommunicatorError)
    return min((FIRST_TURN + TURN * rank) * (rank > 0), LAST_TURN) + SECOND_HAND * elsewhere


def _abort_with(status: Any) -> None:
    """Let mpi4py abort the job at exit, if the program has loaded it."""
    if "mpi4py" in sys.modules:
        from mpi4py.run import set_abort_status
        set_abort_status(status)


def _limit(status: int) -> None:
    """Abort even if a thread or an exit handler of the program keeps this process alive."""
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized():
        from hpccoll.worker import Worker
        pauses = [GRACE]
        Worker("hpccoll abort",
               lambda: pauses.pop() if pauses else MPI.COMM_WORLD.Abort(status)).wake()


def set_variables(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set missing variables; collective over ``MPI.COMM_WORLD``.

    Sets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR`` and
    ``MASTER_PORT``. The port was free on rank 0's host when it was selected.
    """
    MPI = require_mpi()
    comm = MPI.Intracomm(MPI.COMM_WORLD)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    host = "localhost" if node.size == comm.size else MPI.Get_processor_name()
    host, port = comm.bcast((host, _free_port()) if comm.rank == 0 else None)
    for name, value in {"RANK": comm.rank, "WORLD_SIZE": comm.size, "LOCAL_RANK": node.rank,
                        "LOCAL_WORLD_SIZE": node.size, "MASTER_ADDR": host, "MASTER_PORT": port
                        }.items():
        environ.setdefault(name, str(value))
    node.Free()


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])
