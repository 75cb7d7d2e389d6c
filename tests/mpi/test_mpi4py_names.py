"""Every public name of mpi4py's communicators is one of hpccoll's: same kind, signature,
meaning."""

import ast
import functools
import inspect
from pathlib import Path

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm.communicator import Cart, Distgraph, Graph
from support.folded import folded

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.Get_size(), WORLD.Get_rank()
#: mpi4py's class, hpccoll's, and what makes a communicator of that kind.
KINDS = {
    "Intracomm": (hpccoll.Comm, lambda comm: comm.Dup()),
    "Cartcomm": (Cart, lambda comm: comm.Create_cart([SIZE, 1], [True, False])),
    "Graphcomm": (Graph, lambda comm: comm.Create_graph(
        list(range(1, SIZE + 1)), [(r + 1) % SIZE for r in range(SIZE)])),
    "Distgraphcomm": (Distgraph, lambda comm: comm.Create_dist_graph_adjacent(
        [(RANK - 1) % SIZE], [(RANK + 1) % SIZE], [3], [4])),
}
PROPERTY, METHOD, CLASSMETHOD, STATICMETHOD = "property", "method", "classmethod", "staticmethod"


@functools.cache
def members(kind):
    """Kind and parameters of every public name of a class of mpi4py's, by name."""
    tree = ast.parse((Path(MPI.__file__).parent / "MPI.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found = {}
    for base in reversed(getattr(MPI, kind).__mro__[:-1]):
        for node in classes[base.__name__].body:
            if isinstance(node, ast.AnnAssign):
                found[node.target.id] = PROPERTY, ()
            elif isinstance(node, ast.FunctionDef):
                marks = [mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)]
                how = next((m for m in marks if m in (PROPERTY, CLASSMETHOD, STATICMETHOD)), METHOD)
                found[node.name] = how, () if how == PROPERTY else parameters(node.args)
    return {name: value for name, value in found.items() if not name.startswith("_")}


def parameters(args):
    """Names, kinds and defaults of what a function of the stubs takes, as ``inspect`` has them."""
    named = [*args.posonlyargs, *args.args]
    defaults = [inspect.Parameter.empty] * (len(named) - len(args.defaults)) + [
        eval(ast.unparse(each), vars(MPI).copy()) for each in args.defaults]
    kinds = ([inspect.Parameter.POSITIONAL_ONLY] * len(args.posonlyargs)
             + [inspect.Parameter.POSITIONAL_OR_KEYWORD] * len(args.args))
    assert not (args.vararg or args.kwarg or args.kwonlyargs)
    return tuple(zip((each.arg for each in named), kinds, defaults))


def what(attribute):
    """Kind and parameters of an attribute that hpccoll defines."""
    if isinstance(attribute, property):
        return PROPERTY, ()
    how = {classmethod: CLASSMETHOD, staticmethod: STATICMETHOD}.get(type(attribute), METHOD)
    function = attribute.__func__ if how != METHOD else attribute
    return how, tuple((each.name, each.kind, each.default)
                      for each in inspect.signature(function).parameters.values())


@pytest.mark.parametrize("kind", KINDS)
def test_the_stubs_are_those_of_this_mpi4py(kind):
    missing = {name for name in dir(getattr(MPI, kind)) if name[0] != "_"} - set(members(kind))
    assert not missing, f"mpi4py has names without a stub: {missing}"


@folded("kind, name", [(kind, name) for kind in KINDS for name in members(kind)])
def test_kind_and_signature(kind, name):
    ours, native = (inspect.getattr_static(cls, name)
                    for cls in (KINDS[kind][0], getattr(MPI, kind)))
    if ours is not native:  # else it is mpi4py's own
        expected, wanted = members(kind)[name]
        found, taken = what(ours)
        assert found == expected
        # A positional-only parameter of mpi4py's may be given by its name here.
        assert [(each, default) for each, _, default in taken] == [
            (each, default) for each, _, default in wanted]
        for (_, here, _), (_, there, _) in zip(taken, wanted):
            assert here in (there, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def comparable(value):
    """A value that equals another one of the same meaning."""
    if isinstance(value, MPI.Group):
        ranks = list(range(value.Get_size()))
        everyone = MPI.Group.Translate_ranks(value, ranks, WORLD.Get_group())
        return "group", list(everyone)
    if isinstance(value, MPI.Info):
        return "info", {value.Get_nthkey(n): value.Get(value.Get_nthkey(n))
                        for n in range(value.Get_nkeys())}
    return type(value), value


def outcome(look):
    """What a look at a communicator gives: a value, or the class of the error."""
    try:
        return comparable(look())
    except Exception as error:
        return "raises", MPI.Exception if isinstance(error, MPI.Exception) else type(error)


@pytest.mark.parametrize("kind", KINDS)
def test_properties_and_queries_have_the_same_values(world, kind):
    ours, make = KINDS[kind]
    comm = make(world)
    assert type(comm) is ours
    comm.Set_name("a name")
    native = getattr(MPI, kind)(comm)
    looks = {name: (how, taken) for name, (how, taken) in members(kind).items()
             if how == PROPERTY or how == METHOD and len(taken) == 1
             and name.startswith(("Get_", "Is_", "py2f", "toint"))}
    assert {"topology", "rank", "group", "handle", "name", "Get_topology", "is_topo"} <= set(looks)
    for name, (how, _) in looks.items():
        one, other = (outcome(lambda: getattr(each, name) if how == PROPERTY
                              else getattr(each, name)()) for each in (comm, native))
        assert one == other, name
    assert comm.topology == comm.Get_topology() == {
        "Intracomm": MPI.UNDEFINED, "Cartcomm": MPI.CART, "Graphcomm": MPI.GRAPH,
        "Distgraphcomm": MPI.DIST_GRAPH}[kind]
    if kind == "Cartcomm":
        for arguments in ((0, 1), (1, 1)):
            assert comm.Shift(*arguments) == native.Shift(*arguments)
        assert comm.Get_cart_rank([RANK, 0]) == native.Get_cart_rank([RANK, 0]) == RANK
    comm.Free()


def test_properties_that_can_be_set(world):
    comm = world.Dup()
    comm.name = "another name"
    assert comm.Get_name() == MPI.Intracomm(comm).Get_name() == "another name"
    info = MPI.Info.Create()
    comm.info = info
    info.Free()
    comm.Free()


@pytest.mark.parametrize("kind", KINDS)
def test_communicators_come_out_as_hpccolls(world, kind):
    """What mpi4py returns as a communicator of its own class is one of hpccoll's class for it."""
    ours, make = KINDS[kind]
    comm = make(world)
    for child in comm.Dup(), comm.Clone(), ours(MPI.Intracomm(comm)), ours.fromhandle(comm.handle):
        assert type(child) is ours and isinstance(child, getattr(MPI, kind))
        if child != comm:
            child.Free()
    part = comm.Split(0)
    assert type(part) is hpccoll.Comm and part.topology == MPI.UNDEFINED
    part.Free()
    comm.Free()


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_hpccolls_own_are_none_of_mpi4pys(kind):
    own = {name for name in dir(KINDS[kind][0]) if name[0] != "_"} - set(members(kind))
    assert {"layout", "explain", "using", "empty", "zeros"} <= own
    everything = {name for other in vars(MPI).values() if isinstance(other, type)
                  and issubclass(other, MPI.Comm) for name in dir(other)}
    assert not own & everything
