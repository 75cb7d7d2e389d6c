"""Every call on ranks: method, type, operator, way, executor, algorithm, size and memory.

Each row of ``ROWS`` is a set of calls; an item makes them in one way with one executor, in loops.
The message of a failure names the call, and its words run it alone::

    mpiexec -n 2 python -m mpi4py -m pytest -x --with-mpi tests/mpi/test_calls.py \\
        --call "Allreduce in place float64 sum count=5 blocking compiled ring"
"""

import contextlib
import functools
import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy
import pytest
from mpi.buffers import FORMS, memory
from mpi.cases import METHODS, REDUCTIONS, Calls, Case
from mpi.nodes import dealt, shuffled
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.comm import staged_calls
from hpccoll.cuda import windows
from hpccoll.errors import ArgumentError
from hpccoll.ir.methods import METHODS as COLLECTIVE
from hpccoll.ir.operators import OPERATORS
from hpccoll.runtime.execution.built import BUILT
from hpccoll.testing.exact import affine
from support.gpu.device import installed
from support.gpu.streams import Devices

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

pytestmark = pytest.mark.mpi
SIZE = MPI.COMM_WORLD.Get_size()
THREE, ANY = 3, 1 << 10
MOST_TURNS = 3 if SIZE < THREE else 2
WAYS = ("blocking", "nonblocking", "persistent")
#: ``both``: every second rank has the interpreter.
EXECUTORS = ("library", "python", *["compiled"] * BUILT, *["both"] * (BUILT and SIZE > 1))
OURS = EXECUTORS[1:]
DTYPES = tuple("?bBhHiIlLqQefdgFDG") + (bfloat16,) * (bfloat16 is not None)
PAIRS = tuple(numpy.dtype([("value", value), ("index", "i4")], align=True)
              for value in ("f8", "f4", "i4", "i8", "i2"))
#: Methods whose blocks may differ, and those of them of which the root alone knows all counts: some
#: algorithms need equal blocks, and a request cannot wait for counts.
UNEVEN, ROOTED = ("Alltoallv", "Alltoallw"), ("Gatherv", "Scatterv")


class Row(NamedTuple):
    """Calls: all combinations of what is listed, or ``draws`` random sizes for each type and form.

    Three ranks and more draw a quarter of these sizes, and make each call twice at most.

    Attributes:
        algorithms: ``auto``, names, places in the list of a collective; or ``every``, or every
            ``hierarchical`` one. Without meaning for the executor ``library``.
        roots: of one count after the other; from the last rank if negative.
        turns: how often each call is made, every second time with other data.
        most: ranks on which the row runs: types and memory on one and two; ways to send and to
            store on three, too; what algorithms do with ranks on any number.
        settings: environment variables, without their prefix.
    """

    cases: Callable[[Calls], Iterator[Case]] = Calls.all
    dtypes: tuple = ("f8",)
    ops: tuple = ("sum",)
    counts: tuple = (5,)
    roots: tuple = (-1, 0)
    algorithms: tuple = ("auto", 0, -1)
    forms: tuple = ("arrays",)
    blocks: tuple = ("apart",)
    memories: tuple = ("host",)
    ways: tuple = WAYS
    executors: tuple = EXECUTORS
    turns: int = 3
    draws: int = 0
    most: int = 2
    settings: dict = {}

    def combinations(self) -> Iterator[dict]:
        """Arguments of :class:`Calls`, the same on every rank."""
        if not self.draws:
            for dtype, op, (count, root), form, blocks in itertools.product(
                    self.dtypes, self.ops, zip(self.counts, itertools.cycle(self.roots)),
                    self.forms, self.blocks):
                if is_defined(op, numpy.dtype(dtype)):
                    yield {"dtype": dtype, "op": op, "count": count, "root": root % SIZE,
                           "form": form, "blocks": blocks, "equal": blocks == "packed"}
        source = random.Random(SIZE)
        for (dtype, form, blocks), _ in itertools.product(
                zip(self.dtypes, self.forms, self.blocks),
                range(self.draws if SIZE < THREE else self.draws // 4)):
            count = source.choice((1, 2, SIZE, *[source.randrange(1, most)
                                                 for most in (200, 200, 3000, 20_000)]))
            yield {"dtype": dtype, "op": "sum", "count": count, "root": count % SIZE, "form": form,
                   "blocks": blocks, "equal": source.random() < 0.3}


def few_types(calls):
    """Reductions of all types, but of most types the Allreduce only."""
    return (case for case in calls.reductions()
            if case.method == "Allreduce" or calls.dtype.char in "?bdF")


ONE = ("library", "python", *["compiled"] * BUILT)
ROWS = {
    "methods": Row(counts=(0, 1, SIZE - 1, SIZE + 1, 31)[::1 if SIZE <= THREE else 2], most=ANY),
    "algorithms": Row(dtypes=("i4",), counts=(40,), roots=(SIZE // 2,), algorithms=("every",),
                      ways=("blocking",), executors=OURS, most=ANY),
    # Sizes that a communicator has not seen before, with blocks that are cut in several ways.
    "new sizes": Row(dtypes=("f8", "f4", "i8"), forms=FORMS, blocks=("in order", "packed", "apart"),
                     algorithms=("auto",), ways=("blocking",), executors=OURS[1:], turns=1,
                     draws=14, most=ANY),
    "new sizes by name": Row(dtypes=("i4",), forms=("types",), blocks=("in order",),
                             algorithms=(0, 1, 2, 3), ways=("blocking",), executors=OURS[2:],
                             turns=1, draws=14, most=THREE),
    "large": Row(counts=(4099, 40_009), algorithms=("auto", 0), executors=OURS[-2:], most=THREE),
    "segments": Row(dtypes=("f4",), counts=(3001,), algorithms=(0,), executors=OURS,
                    settings={"SEGMENT_BYTES": "4K"}, most=THREE),
    "messages": Row(counts=(1, 3001), algorithms=(0,), executors=OURS[-1:],
                    settings={"SHARED_MEMORY": "no"}, most=THREE),
    "checksums": Row(counts=(1, 3001), algorithms=(0,), executors=OURS[-1:],
                     settings={"CHECKSUMS": "yes"}, most=THREE),
    "dealt": Row(dtypes=("i8",), counts=(1, 7, 5000), algorithms=("hierarchical",),
                 ways=("blocking",), executors=OURS[-1:], most=ANY,
                 settings={"TOPOLOGY": str(dealt())}),
    "shuffled": Row(dtypes=("i8",), counts=(1, 7, 5000), algorithms=("hierarchical",),
                    ways=("blocking",), executors=OURS[-1:], most=ANY,
                    settings={"TOPOLOGY": str(shuffled())}),
    "operators": Row(few_types, DTYPES, tuple(OPERATORS), (7,), algorithms=(0,),
                     ways=("blocking",), executors=ONE, turns=2),
    "pairs": Row(Calls.reductions, PAIRS, ("maxloc", "minloc"), (9,),
                 algorithms=(0,), forms=("types",), ways=("blocking",), executors=ONE),
    "order": Row(Calls.reductions, ("c16",), ("affine",), (6,), algorithms=("every",),
                 executors=OURS[-1:], turns=2, most=ANY),
    "types": Row(Calls.movements, DTYPES, counts=(3,), algorithms=(0,),
                 ways=("blocking",), executors=ONE),
    "half": Row(dtypes=("f2", *DTYPES[18:]), counts=(0, 37), executors=ONE[1:]),
    "half operators": Row(Calls.reductions, ("f2", *DTYPES[18:]), ("sum", "prod", "max", "min"),
                          (3000,), algorithms=(0,), ways=("blocking",), executors=ONE[1:],
                          most=THREE),
    # MPICH's Allgatherv cuts large messages by the extent of the own datatype: it gets small ones.
    "derived": Row(Calls.movements, counts=(1, 31), blocks=("packed",), algorithms=(0,),
                   memories=("gaps", "columns"), executors=ONE, most=THREE),
    "derived and large": Row(Calls.movements, counts=(7, 6151), blocks=("packed",),
                             algorithms=("every",), memories=("gaps", "columns"),
                             ways=("blocking",), executors=OURS[-1:]),
    # MPI libraries lose step if one rank passes no elements, and another elements without bytes.
    "derived and empty": Row(Calls.movements, counts=(0, 3), memories=("gaps",), algorithms=(0,),
                             ways=("blocking",), executors=ONE[1:], most=THREE),
    "memory": Row(memories=("read-only", "subclass"), algorithms=("auto", 0), executors=ONE),
    "registered": Row(dtypes=("i8",), counts=(7, 16_385), algorithms=(0,), executors=ONE[1:],
                      ways=("blocking",), most=THREE, memories=("registered", "registered inputs",
                                                    "registered outputs", "registered on some")),
    "registered requests": Row(counts=(7, 16_385), algorithms=(-1,), executors=ONE[1:],
                               ways=WAYS[1:], memories=("registered on some",)),
    # Counts come again with other roots, and after larger ones: kept memory grows.
    "devices": Row(counts=(7, 7, 3001, 7), algorithms=("auto", 0),
                   memories=("device",), executors=OURS[-1:]),
    "devices on some": Row(counts=(7, 3001), algorithms=(-1,),
                           memories=("device on some",), executors=OURS[-1:]),
    "devices natively": Row(counts=(7, 7), memories=("device", "device on some"),
                            ways=("blocking",), executors=("library",)),
    "device windows": Row(dtypes=("i8",), counts=(7, 3001), algorithms=(-1,),
                          memories=("device on some windows",), executors=OURS[-1:],
                          settings={"SEGMENT_BYTES": "8K"}),
    "devices, half": Row(Calls.movements, DTYPES[18:], counts=(5, 70_001), algorithms=(0,),
                         memories=("device",), ways=("blocking",),
                         executors=("library", OURS[-1])),
    "devices, registered": Row(counts=(7, 3001), algorithms=(0,), ways=WAYS[:2],
                               memories=("device registered", "device registered on some"),
                               executors=OURS[-1:]),
}
#: On three ranks one executor is enough beside the library, and on more a blocking call.
ITEMS = [pytest.param(name, way, executor, id=f"{name}-{way}-{executor}")
         for name, row in ROWS.items() if SIZE <= row.most
         for way in (row.ways if SIZE <= THREE else row.ways[:1])
         for executor in row.executors if SIZE < THREE or executor == row.executors[-1]
         or executor == "library" and name == "methods"]


@pytest.fixture
def make(monkeypatch):
    """A function that makes a communicator with an executor and settings, for a ``with`` block."""
    @contextlib.contextmanager
    def communicator(executor="library", **settings):
        if executor != "library":
            interpreted = executor == "python" or executor == "both" and MPI.COMM_WORLD.rank % 2
            settings["EXECUTOR"] = "python" if interpreted else "compiled"
        for name, value in settings.items():
            monkeypatch.setenv(f"HPCCOLL_{name}", value)
        comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
        assert comm.layout  # until it is set up, the MPI library runs all nonblocking calls
        yield comm
        comm.Free()
    return communicator


@contextlib.contextmanager
def devices(row, monkeypatch):
    """A double of CuPy whose work is done late, if a row has memory of devices."""
    if "device" not in row.memories[0]:
        yield None
        return
    if "windows" in row.memories[0]:
        monkeypatch.setattr(windows, "FAIR", 4096)
        monkeypatch.setattr(staged_calls, "MOST_BYTES", -1)
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(MPI.COMM_WORLD.bcast(folder)) if "registered" in row.memories[0] else None
        with (installed(False, Devices(seed=MPI.COMM_WORLD.rank), shared) as cupy,
              cupy.cuda.Stream(non_blocking=True)):
            yield cupy
        MPI.COMM_WORLD.Barrier()


@contextlib.contextmanager
def prepared(comm, case, way):
    """The call as a function without arguments."""
    if way == "persistent":
        request = getattr(comm, f"{case.method}_init")(*case.args)
        assert isinstance(request, MPI.Prequest)
        yield lambda: (request.Start(), request.Wait())
        request.Free()
    elif way == "nonblocking":
        def call():
            request = getattr(comm, f"I{case.method.lower()}")(*case.args)
            assert isinstance(request, MPI.Request)
            request.Wait()
        yield call
    else:
        yield lambda: getattr(comm, case.method)(*case.args)


def algorithms(row, executor, collective):
    """Names of the algorithms of a collective with which a row is run."""
    found = [name for name, entry in ALGORITHMS[collective].items()
             if entry.hierarchical or row.algorithms != ("hierarchical",)]
    if executor == "library" or row.algorithms[0] in ("every", "hierarchical"):
        return ["native"] if executor == "library" else found
    return dict.fromkeys(each if isinstance(each, str) else found[each % len(found)]
                         for each in row.algorithms)


def composition():
    """Make an operator that composes affine maps: associative, and the order shows."""
    def compose(left, right, datatype):
        a, b = numpy.frombuffer(left, "c16"), numpy.frombuffer(right, "c16")
        b[...] = affine(a, b)
    return hpccoll.Op.Create(compose, False, elementwise=True)


def is_half(dtype):
    return dtype.char == "e" or bfloat16 is not None and dtype == bfloat16


def is_defined(op, dtype):
    """Tell whether MPI has an operator for a type."""
    if op == "affine" or OPERATORS[op].pairs:
        return op == "affine" or dtype.names is not None
    return dtype.names is None and OPERATORS[op].defined_on("f" if is_half(dtype) else dtype.kind)


def is_left_open(case, name, way):
    """Tell whether the MPI library decides about a result: of 16-bit floats, or an overflow.

    Open MPI sometimes saturates integers. In place is for all ranks or for none, by the standard;
    where some are, only small blocking calls are right in both libraries.
    """
    calls, native = case.calls, name in ("auto", "native")
    if native and "in place on some" in case.title and (way != "blocking" or calls.count > 50):
        return True
    return case.method in REDUCTIONS and (name == "native" and is_half(calls.dtype) or (
        native and calls.op in ("sum", "prod") and calls.dtype.kind in "iu"))


def run(comm, cases, way, name, turns):
    """Make the call of the first case again and again, with the data of one after the other.

    Some algorithms refuse some calls, on all ranks: those without the error would wait.
    """
    case, collective = cases[0], COLLECTIVE[cases[0].method.lower()]
    entry = ALGORITHMS[collective].get(name)
    loses_order = case.calls.op == "affine" and not entry.rank_order
    try:
        with comm.using(**{collective: name}), prepared(comm, case, way) as call:
            for data in itertools.islice(itertools.cycle(cases), turns):
                case.fill(data)
                call()
                case.check(data)
    except Exception as error:
        may_refuse = loses_order or case.method in UNEVEN + ROOTED * (way != "blocking")
        if not may_refuse or getattr(error, "argument", "") != "algorithm":
            raise AssertionError(f"rank {comm.rank}: {case.title}: {error!r}") from error
    else:
        assert not loses_order, case.title


@pytest.mark.parametrize("row, way, executor", ITEMS)
def test_calls(request, monkeypatch, make, row, way, executor):
    words, row, ran = set(request.config.getoption("call").split()), ROWS[row], set()
    op = composition() if "affine" in row.ops else None
    with devices(row, monkeypatch) as cupy, make(executor, **row.settings) as comm:
        for memory_name, chosen in itertools.product(row.memories, list(row.combinations())):
            buffers = memory(memory_name, comm, cupy)
            made = [row.cases(Calls(comm.rank, comm.size, mpi_op=op, **chosen, **more))
                    for more in ({"memory": buffers}, {"seed": 1})[:row.turns]]
            for case, *other in zip(*made):
                title, collective = case.title, COLLECTIVE[case.method.lower()]
                for name in algorithms(row, executor, collective):
                    case.title = f"{title} {memory_name} {way} {executor} {name}"
                    if not is_left_open(case, name, way) and words <= set(case.title.split()):
                        ran.add(case.method)
                        run(comm, [case, *other], way, name, min(row.turns, MOST_TURNS))
    if op is not None:
        op.Free()
    assert words or ran and (row is not ROWS["methods"] or ran == {*METHODS})


def test_variables_choose_the_algorithm_in_every_way(make):
    """For 16-bit floats also where they name the MPI library, which cannot reduce those."""
    second = ";".join(f"{name}={list(table)[1]}" for name, table in ALGORITHMS.items())
    native = ";".join(f"{name}=native" for name in ALGORITHMS)
    for variable, dtype in [(second, "f8"), *[(native, bfloat16)] * (len(DTYPES) > 18)]:
        with make(OURS[-1], ALGORITHM=variable) as comm:
            for way in WAYS:
                for case in Calls(comm.rank, comm.size, dtype, 4).reductions():
                    if way != "nonblocking" or variable == second:
                        with prepared(comm, case, way) as call:
                            case.fill()
                            call()
                            case.check()
            request = comm.Iallreduce(numpy.ones(3), numpy.empty(3))
            assert isinstance(request, hpccoll.Request) == (variable == second)
            request.Wait()


WHOLE = 20


def product(left, right, datatype):
    """Of matrices: an operator that needs whole vectors, as with both MPI libraries."""
    a, b = numpy.frombuffer(left), numpy.frombuffer(right)
    assert a.size == WHOLE ** 2, "a part of the vector"
    b[...] = (a.reshape(WHOLE, WHOLE) @ b.reshape(WHOLE, WHOLE)).ravel()


@pytest.mark.parametrize("settings", [
    {}, {"determinism": "run"}, {"determinism": "size"}, {"determinism": "layout"},
    {"checksums": True}], ids=str)
def test_an_operator_of_the_program_gets_whole_vectors(world, settings):
    comm, op = hpccoll.Comm(world, **settings), MPI.Op.Create(product)
    draw = [numpy.random.default_rng(rank).integers(-1, 2, (WHOLE, WHOLE)).astype("f8")
            for rank in range(comm.size)]
    wanted, out = functools.reduce(numpy.matmul, draw), numpy.zeros((WHOLE, WHOLE))
    for collective, rank in ("allreduce", comm.rank), ("reduce", 0):
        for name in ("auto", *ALGORITHMS[collective]):
            out[...] = 0
            try:
                with comm.using(**{collective: name}, segment_bytes="1K"):
                    getattr(comm, collective.title())(draw[comm.rank], out, op)
            except ArgumentError as error:  # on all ranks, or those without it would wait
                entry = ALGORITHMS[collective][name]
                assert not (entry.keeps_vectors_whole and entry.rank_order) or settings, error
            else:
                assert comm.rank != rank or numpy.array_equal(out, wanted), (collective, name)
    op.Free()
