"""Messages between two ranks, groups, objects, and time that is up."""

import time
from datetime import timedelta

import pytest
from mpi.torch_case import THREADS, dist, gather_single, gloo, group, place, torch
from mpi4py import MPI

from hpccoll.errors import GroupTimeout, ProcessGroupError

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("group"), THREADS]
#: Elements of a long message. Open MPI writes past the end of a small buffer, without hpccoll too.
LONG = [] if "Open MPI" in MPI.Get_library_version() else [50_000]
several = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs somebody else")


@several
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64],
                         ids=str)
@pytest.mark.parametrize("count", [0, 1, 300_000])
def test_around_the_ring(count, dtype):
    rank, size = place()
    mine = (torch.arange(count) % 7 + rank).to(dtype)
    got = torch.zeros(2, count, dtype=dtype)[1]
    works = [dist.isend(mine, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
    for work in works:
        assert work.wait()
        assert work.is_completed()
    assert torch.equal(got, (torch.arange(count) % 7 + (rank - 1) % size).to(dtype))


class DeviceTensor(torch.Tensor):
    """A tensor that says it lies on a device; only ``cpu`` brings its values to the host."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cpu = False

    def cpu(self):
        return self.as_subclass(torch.Tensor).clone()


@several
@pytest.mark.parametrize("count", [1, 300_000])
def test_device_memory_travels_through_the_host(monkeypatch, count):
    """Where the MPI library cannot move it; what MPI gets is never the tensor itself."""
    monkeypatch.setattr("hpccoll.Comm.moves_device_memory", False)
    monkeypatch.setattr("hpccoll.torch.process_group.peers.check_capture", lambda: None)
    rank, size = place()
    mine = torch.full((count,), float(rank)).as_subclass(DeviceTensor)
    got = torch.zeros(count, 2)[:, 0].as_subclass(DeviceTensor)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, (rank + 1) % size),
                                    dist.P2POp(dist.irecv, got, (rank - 1) % size)])
    for work in works:
        work.wait()
    assert (got.cpu() == (rank - 1) % size).all()


@several
def test_blocking_from_anybody_with_tags():
    rank, size = place()
    if rank:
        dist.send(torch.full((3, 2), float(rank)).t(), 0)
        dist.send(torch.tensor([rank]), 0, tag=7)
    else:
        last = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        for other in range(1, size):
            assert dist.recv(last[other], other, tag=7) == other
        assert [int(tensor) for tensor in last] == list(range(size))
        seen = set()
        for _ in range(1, size):
            tensor = torch.zeros(3, 2).t()  # not contiguous
            source = dist.recv(tensor)
            assert (tensor == source).all()
            seen.add(source)
        assert seen == set(range(1, size))


@several
def test_batches():
    rank, size = place()
    got = [torch.zeros(4), torch.zeros(4)]
    left, right = (rank - 1) % size, (rank + 1) % size
    operations = [dist.P2POp(dist.isend, torch.full((4,), rank + 0.5), right, tag=1),
                  dist.P2POp(dist.irecv, got[0], left, tag=1),
                  dist.P2POp(dist.irecv, got[1], right, tag=2),
                  dist.P2POp(dist.isend, torch.full((4,), rank + 0.25), left, tag=2)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert (got[0] == left + 0.5).all() and (got[1] == right + 0.25).all()


@several
def test_a_message_arrives_while_nobody_waits():
    """The sender is done with its send only after the receiver has told so otherwise."""
    rank, _ = place()
    store = dist.group.WORLD.get_group_store()
    if rank == 0:
        work = dist.isend(torch.ones(2_000_000), 1)
        store.wait(["arrived"], timedelta(seconds=60))
        work.wait()
    elif rank == 1:
        tensor = torch.zeros(2_000_000)
        dist.recv(tensor, 0)
        store.set("arrived", "yes")
        assert tensor.all()


@several
def test_another_size_is_an_error():
    rank, _ = place()
    if rank == 0:
        dist.send(torch.ones(2), 1)
        for count in 8, *LONG:
            dist.isend(torch.ones(count), 1)
    elif rank == 1:
        with pytest.raises(ProcessGroupError, match="8 bytes.*rank 0.*12"):
            dist.recv(torch.zeros(3), 0)
        with pytest.raises(ProcessGroupError, match="32 bytes from rank 0.*tensor of 12"):
            dist.recv(torch.zeros(3), 0)
        for _ in LONG:  # its size is not reported
            with pytest.raises(ProcessGroupError, match="more than 12 bytes from rank 0.*of 12"):
                dist.recv(torch.zeros(3))


@pytest.mark.parametrize("count", [1000, 1024, 1027])
def test_more_elements_than_a_call_can_count(monkeypatch, count):
    """MPI libraries count 2 GiB; all_reduce, all_to_all of such sizes run in hpccoll's segments."""
    from hpccoll.torch.process_group import collectives, peers
    rank, size = place()
    monkeypatch.setattr(collectives, "MOST_ELEMENTS", 999)
    monkeypatch.setattr(peers, "MOST_ELEMENTS", 999)
    monkeypatch.setattr(peers, "BLOCK", 100)

    def mine(rank):
        return (torch.arange(count) % 251 + rank).to(torch.uint8)

    tensor = mine(rank)
    dist.broadcast(tensor, size - 1)
    assert torch.equal(tensor, mine(size - 1))
    whole, parts = torch.zeros(size * count, dtype=torch.uint8), [mine(0) * 0 for _ in range(size)]
    gather_single(whole, mine(rank))
    dist.all_gather(parts, mine(rank))
    assert torch.equal(whole, torch.cat(list(map(mine, range(size)))))
    assert torch.equal(whole, torch.cat(parts))
    if size > 1:
        sent, got = mine(rank), mine(rank)
        works = [dist.isend(sent, (rank + 1) % size), dist.irecv(got, (rank - 1) % size)]
        for work in works:
            work.wait()
        assert torch.equal(got, mine((rank - 1) % size))


def test_a_bad_tag():
    with pytest.raises(ProcessGroupError, match="tag -1"):
        dist.isend(torch.ones(1), 0, tag=-1)


def test_objects():
    rank, size = place()
    mine = {"rank": rank, "text": "x" * rank, "tensor": torch.ones(rank)}
    everything = [None] * size
    dist.all_gather_object(everything, mine)
    assert [one["rank"] for one in everything] == list(range(size))
    assert [one["tensor"].numel() for one in everything] == list(range(size))
    listed = [mine, rank] if rank == size - 1 else [None, None]
    dist.broadcast_object_list(listed, size - 1)
    assert listed[0]["text"] == "x" * (size - 1) and listed[1] == size - 1
    collected = [None] * size if rank == 0 else None
    dist.gather_object(mine, collected, 0)
    assert rank or [one["rank"] for one in collected] == list(range(size))
    out = [None]
    dist.scatter_object_list(out, [{"to": other} for other in range(size)] if rank == 0 else None)
    assert out == [{"to": rank}]
    if size > 1 and rank < 2:
        given = [mine] if rank == 0 else [None]
        (dist.send_object_list if rank == 0 else dist.recv_object_list)(given, 1 - rank)
        assert given[0]["rank"] == 0


def test_groups_of_members_only():
    rank, size = place()
    chosen = list(range(0, size, 2))
    group = dist.new_group(chosen)
    if rank in chosen:
        assert dist.get_rank(group) == chosen.index(rank)
        tensor = torch.full((5,), float(rank))
        dist.all_reduce(tensor, group=group)
        assert (tensor == sum(chosen)).all()
        dist.broadcast(tensor.fill_(rank), chosen[-1], group=group)
        assert (tensor == chosen[-1]).all()
        dist.destroy_process_group(group)
    mine = dist.new_subgroups(1)[0]
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=mine)
    assert (tensor == 1).all()
    alone = dist.new_group([rank], use_local_synchronization=True)
    dist.barrier(alone)


def test_beside_gloo(gloo):
    """A group of ours while the default group is somebody else's works, and the other way round."""
    rank, size = place()
    tensor = torch.full((4,), rank + 1.0)
    dist.all_reduce(tensor, group=gloo)
    dist.all_reduce(tensor)
    assert (tensor == size * size * (size + 1) / 2).all()


def test_monitored_barrier(group):
    group.monitored_barrier()
    dist.barrier()
    if place()[1] == 1:
        return
    rank, size = place()
    late = size - 1
    if rank != late:
        with pytest.raises(ProcessGroupError, match=rf"ranks? {late} |waited"):
            group.monitored_barrier(timedelta(seconds=0.3))
    # The messages of the one that failed are not in the way of the next: the late rank enters the
    # failed one first, and then waits.
    if rank == late:
        time.sleep(0.6)
        with pytest.raises(ProcessGroupError, match="waited|arrive"):
            group.monitored_barrier(timedelta(seconds=0.1))
        time.sleep(0.6)
        entered = time.monotonic()
    group.monitored_barrier(wait_all_ranks=True)
    left = time.monotonic()
    assert MPI.COMM_WORLD.bcast(entered if rank == late else None, late) <= left
    assert len(dist.group.WORLD.peers.rounds) <= size


@several
def test_the_time_of_one_wait_is_up():
    """The call goes on: a later wait succeeds, and the group stays."""
    rank, size = place()
    group = dist.new_group(timeout=timedelta(minutes=5))
    dist.barrier(group)
    value = torch.ones(3)
    if rank == 0:
        work = dist.all_reduce(value, group=group, async_op=True)
        for _ in range(2):
            start = time.monotonic()
            with pytest.raises(GroupTimeout, match="allreduce, call 2.*rank 0"):
                work.wait(timedelta(seconds=0.2))
            assert time.monotonic() - start < 20 and not work.is_completed()
    dist.barrier()
    if rank == 0:
        assert work.wait(timedelta(seconds=60))
    else:
        dist.all_reduce(value, group=group)
    assert (value == size).all()
    dist.barrier(group)
    dist.barrier()
    group.abort()


@several
def test_abort():
    rank, _ = place()
    group = dist.new_group()
    if rank == 0:
        work = dist.irecv(torch.ones(3), 1, group=group)
        group.abort()
        with pytest.raises(ProcessGroupError, match="aborted"):
            work.wait()
        with pytest.raises(ProcessGroupError, match="aborted"):
            dist.barrier(group)
    dist.barrier()
    group.abort()


__all__ = ["gloo", "group"]
