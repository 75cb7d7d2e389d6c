"""Help pages show defaults by their names, and what they show is what holds."""

import inspect
import pydoc

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm.communicator import KINDS
from hpccoll.comm.signatures import NamedInfo, NamedOp, name_defaults, shown

#: The methods that are ours.
OWN = {name: value for cls in hpccoll.Comm.__mro__ if cls.__module__.startswith("hpccoll")
       for name, value in vars(cls).items() if name[0] != "_" and callable(value)}


@pytest.mark.parametrize("each", [hpccoll.Comm, *(ours for _, ours in KINDS)])
def test_help_has_no_addresses(each):
    ours = pydoc.plain(pydoc.render_doc(each))
    assert "op: 'MPI.Op' = MPI.SUM" in ours and "info: 'Info' = MPI.INFO_NULL" in ours
    assert "object at 0x" not in ours


@pytest.mark.parametrize("name", ["Allreduce", "Iallreduce", "Allreduce_init", "allreduce"])
def test_one_page(name):
    page = pydoc.plain(pydoc.render_doc(getattr(hpccoll.Comm, name)))
    assert "= MPI.SUM" in page and "object at 0x" not in page


@pytest.mark.parametrize("name", OWN)
def test_no_handle_is_a_default_without_a_name(name):
    handles = MPI.Op, MPI.Info, MPI.Datatype, MPI.Errhandler, MPI.Group
    for each in inspect.signature(OWN[name]).parameters.values():
        assert not isinstance(each.default, handles) or isinstance(
            each.default, (NamedOp, NamedInfo)), each


def test_mpi4pys_classes_are_left_alone():
    theirs, ours = MPI.Intracomm.Spawn, hpccoll.Comm.Spawn
    assert theirs is not ours and theirs.__doc__ == ours.__doc__
    assert not isinstance(inspect.signature(theirs).parameters["info"].default, NamedInfo)


def test_what_ours_call_is_mpi4pys():
    grid = hpccoll.Comm(MPI.COMM_SELF).Create_cart([1], [True])
    sent, received = numpy.arange(3.0), numpy.zeros(6)
    grid.Neighbor_allgather(sent, received)
    assert (received == [0, 1, 2, 0, 1, 2]).all()
    with pytest.raises(TypeError, match="Spawn"):
        grid.Spawn()
    request = grid.Neighbor_allgather_init(2 * sent, received, info=MPI.INFO_NULL)
    request.Start()
    request.Wait()
    assert (received == [0, 2, 4, 0, 2, 4]).all()
    request.Free()


def test_what_is_shown_equals_what_holds():
    assert shown(MPI.SUM) == MPI.SUM and shown(MPI.INFO_NULL) == MPI.INFO_NULL
    assert shown(0) == 0 and shown(MPI.MAX) is MPI.MAX
    assert inspect.signature(hpccoll.Comm.Allreduce).parameters["op"].default == MPI.SUM


def test_methods_without_handles_keep_their_signatures():
    class Plain:
        def one(self, root: int = 0):
            """Nothing to name."""

        @classmethod
        def two(cls, op=MPI.SUM):
            """A class method."""

    name_defaults(Plain)
    assert not hasattr(Plain.one, "__signature__")
    assert str(inspect.signature(Plain.two)) == "(op=MPI.SUM)"
