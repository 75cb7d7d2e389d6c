"""Every collective method of a communicator is a row of the table of comparisons, and is tested."""

import inspect

from mpi import disagreeing
from mpi.test_objects_errors import NATIVE_WAYS, WAYS
from mpi4py import MPI

from hpccoll.comm import contract
from hpccoll.comm.blocking import BlockingMixin
from hpccoll.comm.nonblocking import NonblockingMixin
from hpccoll.comm.objects.methods import Objects
from hpccoll.comm.persistent import PersistentMixin
from support.folded import folded

#: The public methods of the classes that have nothing but collectives.
METHODS = [name for cls in (BlockingMixin, NonblockingMixin, PersistentMixin, Objects)
           for name in vars(cls)
           if name[0] != "_" and hasattr(MPI.Intracomm, name)]
#: The lower-case methods of which ranks call different ones, or one in different ways.
LOWER = {name for _, usual, unusual, _ in (*WAYS, *NATIVE_WAYS)
         for name in (usual, unusual)} | {"barrier"}
BLOCKING = {name for _, *names in disagreeing.WAYS for name in names}


def test_every_collective_is_a_row():
    assert sorted(METHODS) == sorted(contract.CONTRACT)
    assert all(inspect.isroutine(getattr(MPI.Intracomm, name)) for name in contract.CONTRACT)


@folded("name", contract.CONTRACT)
def test_every_row_is_tested(name):
    """Blocking and lower-case ones are listed; tests of the others walk the table."""
    row, small = contract.CONTRACT[name], disagreeing.method_of(name)
    if name in LOWER:
        return
    assert name != name.lower(), "tests/mpi/test_objects_errors.py has no way to differ in it"
    assert small in disagreeing.CALLS, "tests/mpi/disagreeing.py does not call it"
    if row.how is contract.HASHED:
        assert small in BLOCKING, "tests/mpi/disagreeing.py has no way to differ in it"
    else:
        assert row.how in (contract.BEGUN, contract.MADE)
        assert (row.fields or ("collective",))[0] in (
            "collective", "count", "dtype", "operator", "root")
