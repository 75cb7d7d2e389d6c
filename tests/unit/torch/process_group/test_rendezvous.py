"""How ranks find each other, and what is said where MPI did not start them; one rank here."""

import subprocess
import sys

import pytest

from hpccoll.errors import ProcessGroupError

torch = pytest.importorskip("torch")
rendezvous = pytest.importorskip("hpccoll.torch.process_group.rendezvous")
backend = pytest.importorskip("hpccoll.torch.backend")


def test_one_rank_meets_itself(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    store, rank, size = next(rendezvous.meet("mpi://"))
    assert (rank, size) == (0, 1)
    store.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.parametrize("url", ["mpi://?rank=1&world_size=2", "mpi://?world_size=4"])
def test_other_ranks_than_mpis_are_refused(url):
    with pytest.raises(ProcessGroupError, match="from MPI"):
        next(rendezvous.meet(url))


def test_torchrun_is_recognised(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ProcessGroupError, match="mpiexec -n 4"):
        next(rendezvous.meet("mpi://"))
    with pytest.raises(ProcessGroupError, match="torch.*4 ranks, MPI.*1.*torchrun"):
        backend.communicator(None, 0, 4, "0", 1.0)


def test_registering_twice_does_no_harm():
    for _ in range(2):
        backend.register()
        rendezvous.register_handler()
    assert "hpccoll" in torch.distributed.Backend.backend_list


def test_an_old_torch_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.3.1+cpu")
    with pytest.raises(ProcessGroupError, match="2.3.1.*2.4"):
        backend.register()


def test_importing_starts_no_mpi():
    code = "import sys, hpccoll.torch; sys.exit('mpi4py.MPI' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
