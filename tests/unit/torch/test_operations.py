"""Operations on tensors, on ranks that are threads: exact, for every number of ranks."""

import pytest

from hpccoll.errors import ArgumentError, ExchangeMismatch
from support.threads import run_ranks

torch = pytest.importorskip("torch")
operations = pytest.importorskip("hpccoll.torch.operations")
OperationLine = pytest.importorskip("hpccoll.torch.operation_queue").OperationLine
SIZES = 1, 2, 3, 5, 7, 8


def lined(size, function):
    """Run ``function(comm, line)`` on every rank."""
    def rank(comm):
        line = OperationLine(comm)
        result = function(comm, line)
        line.close()
        return result

    return run_ranks(size, rank)


def rows(rank, count, dtype=torch.int32):
    return ((torch.arange(2 * count).reshape(count, 2) * 3 + 7 * rank) % 13).to(dtype)


@pytest.mark.parametrize("size", SIZES)
def test_gathers_rows_of_any_number(size):
    def rank(comm, line):
        return line.run(operations.allgather(comm, rows(comm.rank, comm.rank), "x"))

    wanted = torch.cat([rows(each, each) for each in range(size)])
    for result, counts in lined(size, rank):
        assert torch.equal(result, wanted) and counts == list(range(size))


@pytest.mark.parametrize("size", SIZES)
def test_exchanges_rows(size):
    def rank(comm, line):
        mine = torch.cat([torch.full((each, 1), 100 * comm.rank + each) for each in range(size)])
        return line.run(operations.alltoall(comm, mine, list(range(size)), "x"))

    for me, (result, came) in enumerate(lined(size, rank)):
        assert came == [me] * size
        assert result.flatten().tolist() == [100 * each + me for each in range(size)
                                             for _ in range(me)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_reduces_and_scatters(size, count):
    cut = operations.even_rows(count, size)
    assert sum(cut) == count and max(cut) - min(cut) <= 1

    def rank(comm, line):
        return line.run(operations.reduce_scatter(comm, rows(comm.rank, count), "max", cut, "x"))

    whole = torch.stack([rows(each, count) for each in range(size)]).amax(0)
    assert torch.equal(torch.cat(lined(size, rank)), whole)


@pytest.mark.parametrize("size", SIZES)
def test_broadcasts_into_any_layout(size):
    def rank(comm, line):
        tensor = rows(comm.rank, 4).t()
        # Their global ranks are other ones.
        return line.run(operations.broadcast(comm, tensor, 9, [*range(11, 10 + size), 9], "x"))

    assert all(torch.equal(each, rows(size - 1, 4).t()) for each in lined(size, rank))


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("what", ["name", "type", "shape", "splits", "kind"])
def test_ranks_that_differ_are_named_on_all(size, what):
    def rank(comm, line):
        odd = comm.rank == size - 1
        tensor = torch.ones(size, 3 if odd and what == "shape" else 2,
                            dtype=torch.float64 if odd and what == "type" else torch.float32)
        splits = [0] * size if odd and what == "splits" else [1] * size
        if odd and what == "kind":
            steps = operations.allgather(comm, tensor, "allgather.x")
        else:
            steps = operations.alltoall(comm, tensor, splits, "alltoall." + "xy"[
                odd and what == "name"])
        with pytest.raises(ExchangeMismatch, match="same calls") as raised:
            line.run(steps)
        # The line goes on.
        line.run(operations.called_alike(comm, "next"))
        return raised.value

    for error in lined(size, rank):
        assert error.ranks == ((size - 1,) if size > 2 else (1,))
        assert f"rank {size - 1}: " in str(error)


def test_a_mistake_that_all_make():
    def rank(comm, line):
        for steps in (operations.allgather(comm, torch.tensor(1.0), "x"),
                      operations.broadcast(comm, torch.ones(1), 9, [0, 1], "x"),
                      operations.alltoall(comm, torch.ones(3), [1], "x")):
            with pytest.raises(ArgumentError):
                line.run(steps)

    lined(2, rank)
