"""Communicators made from ours are ours, share what they should, and end once."""

import gc
import inspect
import pickle

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm.communicator import Cart, Distgraph, Graph
from hpccoll.comm.creation import Creation
from hpccoll.errors import ArgumentError, BrokenCommunicatorError, CommunicatorError
from hpccoll.errors.contract import ContractError
from hpccoll.guard.flight_record import RECORDER
from hpccoll.machine.groups import world_ranks
from hpccoll.measure.profiling.observer import Observer
from hpccoll.runtime.attributes import existing_context
from hpccoll.training.exchange import Exchange
from hpccoll.training.shard.communicators import ShardCommunicators
from hpccoll.training.shard.quantised import ZeroPlusPlus

pytestmark = pytest.mark.mpi


def works(comm):
    out = numpy.zeros(1)
    comm.Allreduce(numpy.ones(1), out)
    with comm.using(allreduce="ring"):
        comm.Iallreduce(numpy.ones(1), out).Wait()
    assert out == comm.size == comm.allreduce(1)


MAKERS = {
    "Dup": lambda c: c.Dup(), "Clone": lambda c: c.Clone(),
    "Dup_with_info": lambda c: c.Dup_with_info(MPI.INFO_NULL),
    "Split": lambda c: c.Split(c.rank % 2, -c.rank), "Create": lambda c: c.Create(c.group),
    "Split_type": lambda c: c.Split_type(MPI.COMM_TYPE_SHARED),
    "Create_group": lambda c: c.Create_group(c.group),
    "Create_from_group": lambda c: c.Create_from_group(c.group)}


@pytest.mark.parametrize("name", MAKERS)
def test_children_are_ours(world, name):
    with world.using(allreduce="linear"):
        child = MAKERS[name](world)
    assert type(child) is hpccoll.Comm and isinstance(child, MPI.Intracomm)
    assert not child._preferences  # what was chosen is not inherited
    works(child)
    child.Free()
    assert child == MPI.COMM_NULL
    works(world)


@pytest.mark.parametrize("name", MAKERS)
def test_children_compare_their_calls_at_the_level_always(monkeypatch, name):
    """mpi4py makes a duplicate's object before it has a handle."""
    monkeypatch.setenv("HPCCOLL_CONTRACT", "always")
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
    child = MAKERS[name](comm)
    works(child)
    if child.size > 1:
        wrong = MPI.MAX if child.rank else MPI.SUM
        with pytest.raises(ContractError, match="operator"):
            child.Allreduce(numpy.ones(1), numpy.zeros(1), wrong)
        assert child._calls is None
    child.Free()
    comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("guarded", [False, True])
def test_ranks_that_disagree_on_what_to_make(guarded):
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
    if guarded:
        assert comm.layout
    with pytest.raises(ContractError, match="collective") as caught:
        comm.Dup() if comm.rank == 1 else comm.Split(0)
    assert {group.fields["collective"] for group in caught.value.groups} == {"dup", "split"}
    if guarded:
        comm.Dup().Free()  # what has failed left messages on the private communicator only
    else:
        with pytest.raises(BrokenCommunicatorError, match="failed"):
            comm.Dup()
    comm.Free()


def test_nonblocking_duplicates(world):
    for begin in (world.Idup, lambda: world.Idup_with_info(MPI.INFO_NULL)):
        child, request = begin()
        request.Wait()
        assert type(child) is hpccoll.Comm
        works(child)
        child.Free()


#: Methods that create a communicator by the one of mpi4py's of the same name.
CREATING = (*(name for name in vars(Creation) if name[0].isupper()), "Create_from_group")


class Recording(MPI.Intracomm):
    """Records the arguments of such methods instead of creating a communicator."""

    seen: list = []


def recording(name):
    def method(*args):
        Recording.seen.append(args)
        return (MPI.COMM_NULL, MPI.REQUEST_NULL) if name[:4] == "Idup" else MPI.COMM_NULL
    method.__name__ = name
    return staticmethod(method)


for name in CREATING:
    setattr(Recording, name, recording(name))


class Recorded(hpccoll.Comm, Recording):
    """The methods of mpi4py that hpccoll calls are those of ``Recording``."""


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("name", CREATING)
def test_every_argument_is_passed_on(world, name, guarded):
    """In order, each in the place that mpi4py has it in: its signature is compared elsewhere."""
    comm = Recorded(world)
    if guarded:
        assert comm.layout
    method = getattr(comm, name)
    # Only a group is read before it is passed on.
    given = {each: comm.Get_group() if each == "group" else object()
             for each in inspect.signature(method).parameters}
    Recording.seen.clear()
    method(**given)
    assert Recording.seen == [tuple(given.values())]


@pytest.mark.mpi(min_size=2)
def test_the_key_orders_the_ranks(world):
    backwards = list(range(world.size))[::-1]
    for make in (lambda: world.Split(0, -world.rank), lambda: world.Split(key=-world.rank),
                 lambda: world.Split_type(MPI.COMM_TYPE_SHARED, -world.rank)):
        child = make()
        assert child.allgather(world.rank) == backwards
        child.Free()


def test_hints_reach_the_library(world):
    info, hint = MPI.Info.Create(), "mpi_assert_allow_overtaking"
    info.Set(hint, "true")
    children = [world.Dup(info), world.Dup_with_info(info),
                world.Split_type(MPI.COMM_TYPE_SHARED, 0, info)]
    for child, request in world.Idup(info), world.Idup_with_info(info):
        request.Wait()
        children.append(child)
    native = MPI.Intracomm(world).Dup(info)
    assert native.Get_info().Get(hint) == "true"
    assert [child.Get_info().Get(hint) for child in children[:2] + children[3:]] == ["true"] * 4
    for child in (*children, native):
        child.Free()
    info.Free()


def test_being_left_out_gives_a_null_communicator_of_ours(world):
    child = world.Split(MPI.UNDEFINED if world.rank else 0)
    assert type(child) is hpccoll.Comm and (child == MPI.COMM_NULL) == (world.rank > 0)
    if world.rank == 0:
        child.Free()
    grid = world.Create_cart([1])
    assert type(grid) is Cart and (grid == MPI.COMM_NULL) == (world.rank > 0)
    if world.rank == 0:
        grid.Free()


def test_cartesian(world):
    grid = world.Create_cart([world.size, 1], periods=[True, False])
    assert type(grid) is Cart
    assert isinstance(grid, hpccoll.Comm) and isinstance(grid, MPI.Cartcomm)
    assert grid.Get_coords(grid.rank) == [grid.rank, 0] and grid.Get_dim() == 2
    before, after = grid.Shift(0, 1)
    assert (before, after) == ((grid.rank - 1) % grid.size, (grid.rank + 1) % grid.size)
    works(grid)
    got = numpy.full(4, -1.)
    grid.Neighbor_allgather(numpy.full(1, float(grid.rank)), got)
    assert got[:2].tolist() == [before, after] and (got[2:] == -1).all()
    grid.Ineighbor_alltoall(numpy.full(4, float(grid.rank)), got).Wait()
    assert got[:2].tolist() == [before, after]
    assert grid.neighbor_allgather(grid.rank)[:2] == [before, after]
    line = grid.Sub([True, False])
    copy = grid.Dup()
    assert type(line) is Cart and type(copy) is Cart and copy.Get_dim() == 2
    assert type(grid.Split(0)) is hpccoll.Comm and type(hpccoll.Comm(MPI.Cartcomm(grid))) is Cart
    works(line)
    works(copy)
    for comm in (line, copy, grid):
        comm.Free()


@pytest.mark.mpi(min_size=3)
def test_grids_that_leave_ranks_over(world):
    """MPICH says the group of all ranks for such a grid, and the names of ranks came from it."""
    back = world.Split(0, -world.rank)
    ranks = list(reversed(range(world.size)))[:-1]
    ring = [(place + 1) % len(ranks) for place in range(len(ranks))]
    for make in (lambda: back.Create_cart([len(ranks)]),
                 lambda: back.Create_cart([1, len(ranks)], reorder=True),
                 lambda: back.Create_graph([place + 1 for place in range(len(ranks))], ring)):
        grid = make()
        assert (grid == MPI.COMM_NULL) == (world.rank == 0)
        if grid == MPI.COMM_NULL:
            continue
        made = [grid, grid.Dup(), grid.Split(0, grid.rank)]
        if isinstance(grid, Cart):
            made.append(grid.Sub([True] * grid.Get_dim()))
        for comm in made:
            works(comm)
            assert comm.allgather(world.rank) == ranks
            context = existing_context(comm)
            assert list(RECORDER.guards[context.guard].world_ranks) == ranks
            assert context.comm.allgather(world.rank) == ranks
            observer = Observer()
            assert list(world_ranks(comm)) == list(
                observer.comms[observer.number_of(comm)].ranks) == ranks
        for comm in reversed(made):
            comm.Free()
    back.Free()


@pytest.mark.parametrize("use", ["calls", "exchange", "sharded"])
def test_communicators_of_our_own_copy_no_attribute(use):
    """A program's callbacks run for its own calls only, and its values have one owner."""
    calls, key = [], MPI.Comm.Create_keyval(lambda comm, key, value: calls.append("copy") or value,
                                            lambda comm, key, value: calls.append("delete"))
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Split(0, MPI.COMM_WORLD.rank))
    if comm.size == 1:
        pytest.skip("mpi4py's own reduction of objects duplicates the communicator")
    comm.Set_attr(key, "value")
    works(comm)
    if use == "calls":
        comm.Allreduce_init(numpy.ones(1), numpy.empty(1)).Free()
        comm.empty(8)
    elif use == "exchange":
        with Exchange(comm, [numpy.ones(10, "f4")]) as exchange:
            exchange.reduce([numpy.ones(10, "f4")])
    else:
        ShardCommunicators(comm, 3, ZeroPlusPlus(hierarchical=True)).free()
    assert not calls
    comm.Free()
    assert calls == ["delete"]
    MPI.Comm.Free_keyval(key)


def test_graphs(world):
    rank, size = world.rank, world.size
    ring = world.Create_dist_graph_adjacent([(rank - 1) % size], [(rank + 1) % size])
    same = world.Create_dist_graph([rank], [1], [(rank + 1) % size])
    graph = world.Create_graph(list(range(1, size + 1)), [(r + 1) % size for r in range(size)])
    for comm, kind, native in ((ring, Distgraph, MPI.Distgraphcomm),
                               (same, Distgraph, MPI.Distgraphcomm),
                               (graph, Graph, MPI.Graphcomm)):
        assert type(comm) is kind and isinstance(comm, native) and isinstance(comm, hpccoll.Comm)
        works(comm)
    got = numpy.zeros(1)
    ring.Neighbor_alltoall(numpy.full(1, float(rank)), got)
    assert got == (rank - 1) % size
    for comm in (ring, same, graph):
        comm.Free()


def test_a_communicator_without_topology_has_no_neighbours(world):
    with pytest.raises(AttributeError):
        world.Neighbor_allgather(numpy.zeros(1), numpy.zeros(1))
    with pytest.raises(CommunicatorError, match="topology"):
        Cart(world)
    for wrong in (3, "world", MPI.GROUP_EMPTY):
        with pytest.raises(CommunicatorError, match="MPI.Intracomm"):
            hpccoll.Comm(wrong)


@pytest.mark.mpi(min_size=2)
def test_intercommunicators_stay_native(world):
    half = world.Split(int(world.rank >= world.size // 2))
    inter = half.Create_intercomm(0, world, world.size // 2 if half.rank == world.rank else 0)
    assert type(inter) is MPI.Intercomm
    merged = inter.Merge()
    assert type(merged) is MPI.Intracomm
    works(hpccoll.Comm(merged))
    with pytest.raises(CommunicatorError):
        hpccoll.Comm(inter)
    for comm in (merged, inter, half):
        comm.Free()


def test_handles(world):
    for other in (hpccoll.Comm.fromhandle(world.handle), hpccoll.Comm.f2py(world.py2f())):
        assert type(other) is hpccoll.Comm and other == world
        works(other)
    grid = world.Create_cart([world.size])
    assert type(hpccoll.Comm.fromhandle(grid.handle)) is Cart
    grid.Free()


def test_pickling():
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD))
    again = pickle.loads(pickle.dumps(comm))
    assert type(again) is hpccoll.Comm and again == MPI.COMM_WORLD
    with pytest.raises(ValueError):
        pickle.dumps(comm.Dup())


def test_wrappers_share_the_private_communicator(world):
    one, other = hpccoll.Comm(world), hpccoll.Comm(MPI.Intracomm(world))
    works(one)
    context = existing_context(one)
    works(other)
    assert existing_context(other) is context is one._private() is other._private()
    dup = world.Dup()
    assert existing_context(dup) is None  # not inherited
    works(dup)
    assert existing_context(dup) is not context
    dup.Free()


def test_the_private_communicator_is_freed_once_with_its_owner(world):
    dup = world.Dup()
    works(dup)
    context, private = existing_context(dup), existing_context(dup).comm
    other = hpccoll.Comm(dup)
    MPI.Intracomm(dup).Free()  # behind our back
    assert context.freed and private == MPI.COMM_NULL
    context.free()
    with pytest.raises(CommunicatorError):
        other.Barrier()


def test_freeing_what_must_not_be_freed():
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD))
    works(comm)
    with pytest.raises(MPI.Exception):
        comm.Free()
    works(comm)


def test_garbage_collection_frees_nothing():
    for _ in range(50):
        works(hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD)))
    gc.collect()
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD))
    works(comm)
    gc.collect()
    assert len(comm._lifetime.wrappers) < 10


def test_a_new_communicator_under_an_old_handle_is_not_taken_for_the_old_one(world):
    for _ in range(5):
        dup = world.Dup()
        stale = hpccoll.Comm(dup)
        works(stale)
        dup.Free()
        fresh = world.Dup()
        with pytest.raises(CommunicatorError):
            stale.Allreduce(numpy.ones(1), numpy.zeros(1))
        works(fresh)
        fresh.Free()


def test_a_class_of_a_users_own(world):
    class Mine(hpccoll.Comm):
        pass

    mine = Mine(world)
    assert type(mine) is Mine and type(mine.Dup()) is Mine and mine == world
    works(mine)


def test_wrappers_must_agree_on_the_layout(world):
    ones = ",".join("1" * world.size)
    comm = world.Dup()
    assert hpccoll.Comm(comm).layout == comm.layout
    assert hpccoll.Comm(comm, layout=str(comm.layout)).layout == comm.layout
    if world.size > 1:
        with pytest.raises(ArgumentError, match="already"):
            hpccoll.Comm(comm, layout=ones).layout
        assert str(hpccoll.Comm(comm.Dup(), layout=ones).layout) != str(comm.layout)
    comm.Free()


def test_a_communicator_says_what_it_is(world):
    comm = hpccoll.Comm(world.Dup())
    comm.Set_name("mine")
    assert repr(comm).startswith(f"<hpccoll.Comm 'mine': rank {world.rank} of {world.size}, layout")
    assert "not looked at yet" in repr(comm)
    assert comm.layout
    if world.rank == world.size - 1:             # alone: nothing is sent
        assert f"layout {comm.layout}" in repr(comm)
    cart = comm.Create_cart([comm.size])
    assert repr(cart).startswith("<hpccoll.Cart")
    cart.Free()
    comm.Free()
    assert repr(comm) == str(comm) == "<hpccoll.Comm: null, or freed>"
    assert "null" in repr(hpccoll.Comm(MPI.COMM_NULL))


def test_what_the_environment_chose_is_said_to_be_its(world, monkeypatch):
    monkeypatch.setenv("HPCCOLL_ALGORITHM", "allreduce=ring")
    comm = hpccoll.Comm(world.Dup())
    said = comm.explain("allreduce", 8).splitlines()[0]
    assert said.endswith("ring (HPCCOLL_ALGORITHM)") or comm.size == 1
    comm.Free()


def test_what_is_chosen_for_good(world):
    comm = hpccoll.Comm(world.Dup())
    comm.choose(allreduce="ring", segment_bytes="64K")
    assert comm.explain("allreduce", 8).splitlines()[0].endswith("ring (comm.using)") or (
        comm.size == 1)
    with comm.using(allreduce="native"):
        assert "native" in comm.explain("allreduce", 8).splitlines()[0]
    assert comm._preferences["allreduce"].algorithm == "ring"
    comm.choose(allreduce="auto")
    assert "comm.using" not in comm.explain("allreduce", 8)
    with pytest.raises(ArgumentError, match="mean 'ring'"):
        comm.choose(allreduce="rign")
    comm.Free()


def test_explain_answers_only_what_it_knows(world):
    comm = hpccoll.Comm(world.Dup())
    before = comm.explain("allreduce", "4M").splitlines()[0]
    assert ("not known yet; read comm.layout on all ranks first" in before) == (comm.size > 1)
    assert comm.layout.size == comm.size
    known = comm.explain("allreduce", "4M").splitlines()[0]
    comm.barrier()
    assert "(" in known and comm.explain("allreduce", "4M").splitlines()[0] == known
    comm.Free()


def test_explain_and_layout(world):
    text = world.explain("allreduce", 4 << 20)
    assert "allreduce" in text and "ring" in text and "native" in text
    assert world.layout.size == world.size
    flat = hpccoll.Comm(world.Dup(), layout=str(world.size))
    assert flat.layout.size == world.size
    flat.Free()
