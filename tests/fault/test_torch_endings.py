"""PyTorch programs in which a rank ends, fails or does not come: the others get an error."""

from importlib.util import find_spec

import pytest
from fault.launching import job

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="no torch in this environment")
HEAD = """
import sys, time, torch, torch.distributed as dist, hpccoll.torch
from datetime import timedelta

torch.set_num_threads(1)
hpccoll.torch.init_process_group(timeout=timedelta(seconds=SECONDS))
rank, size, x = dist.get_rank(), dist.get_world_size(), torch.ones(1000)

def say(*words):
    sys.stdout.write(" ".join(map(str, (rank, *words))) + "\\n")
    sys.stdout.flush()

def train(steps, hook=None):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    if hook:
        model.register_comm_hook(*hook)
    for _ in range(steps):
        model(torch.ones(8, 64)).sum().backward()

def expect(call, *arguments):
    began = time.monotonic()
    try:
        call(*arguments)
    except RuntimeError as error:
        say("error", repr(str(error)), "after", int(time.monotonic() - began), "s")
    else:
        say("no error")
"""
#: Rank 0 calls once more than rank 1: in the backward pass, a hook of ours, a message, a queue.
ONCE_MORE = {
    "ddp": "expect(train, 3 - rank)",
    "hook": "expect(train, 3 - rank, (hpccoll.torch.CompressState('bf16'), "
            "hpccoll.torch.compress_hook))",
    "recv": "if rank == 0: expect(dist.recv, x, 1)",
    "anybody": "if rank == 0: expect(dist.recv, x)",
    "poll": """
if rank == 0:
    work = dist.irecv(x, 1)
    while not work.is_completed():
        pass
    expect(work.wait)
""",
    "future": """
dist.all_reduce(x)
if rank == 0:
    expect(dist.all_reduce(x, async_op=True).get_future().wait)
"""}


def torch_job(program, seconds=60, **settings):
    return job(program, 2, head=HEAD.replace("SECONDS", str(seconds)), **settings)


@pytest.mark.long(every=4)
@pytest.mark.parametrize("form", ONCE_MORE)
def test_the_other_rank_has_ended(form):
    ended = torch_job(ONCE_MORE[form])
    assert ended.status == 0 and "0 error" in ended.output, ended.output
    assert "rank 1 has ended its program" in ended.output and ended.seconds < 25, ended.output


def test_the_other_rank_raises_beside_a_backward_pass():
    ended = torch_job("""
if rank == 1:
    train(1)
    raise ValueError("bad sample")
expect(train, 2)
""")
    assert ended.status != 0 and "bad sample" in ended.output, ended.output
    assert "0 error" in ended.output and "PeerLost" in ended.output, ended.output


@pytest.mark.long(every=3)
@pytest.mark.once
@pytest.mark.parametrize("form", ["dist.all_reduce(x)", "dist.all_reduce(x, async_op=True).wait()",
                                  "train(1)"])
def test_a_rank_that_does_not_come_in_the_time_of_the_group(form):
    """The time of the group counts, not that of other communicators."""
    ended = torch_job(f"""
train(1)
if rank == 0:
    expect(lambda: {form})
else:
    time.sleep(8)
""", 3, HPCCOLL_TIMEOUT="30")
    assert ended.status == 0 and "0 error" in ended.output, ended.output
    assert "rank 1 is at" in ended.output and "after 3 s without progress" in ended.output


def test_the_time_of_a_group_may_be_changed():
    """For calls that have been made before, too, and are prepared."""
    ended = torch_job("""
for _ in range(3):
    dist.all_reduce(x)
dist.group.WORLD.set_timeout(timedelta(seconds=2))
if rank == 0:
    expect(dist.all_reduce, x)
else:
    time.sleep(6)
""")
    assert ended.status == 0 and "0 error" in ended.output, ended.output
    assert "after 2 s without progress" in ended.output and ended.seconds < 30, ended.output


@pytest.mark.long(every=4)
@pytest.mark.once
@pytest.mark.parametrize("form", ["dist.all_reduce(x)", "train(1)", "dist.barrier()",
                                  "dist.send(x, 1) if rank == 0 else dist.recv(x, 0)"])
def test_a_group_may_wait_longer_than_other_communicators(form):
    ended = torch_job(f"""
if rank == 0:
    time.sleep(5)
{form}
say("end")
""", HPCCOLL_TIMEOUT="2")
    assert ended.status == 0 and ended.output.count("end\n") == 2, ended.output


def test_a_call_that_fails_in_the_backward_pass():
    """C++ gets an error, and no Python object in place of a tensor."""
    ended = torch_job("""
def extra():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    for step in range(3):
        if rank == 1 and step == 1:
            dist.all_reduce(torch.ones(3))
        model(torch.ones(8, 64)).sum().backward()
expect(extra)
""")
    assert ended.status == 0 and "0 error" in ended.output and "1 error" in ended.output
    assert ended.output.count("ranks disagree on") >= 2, ended.output


@pytest.mark.parametrize("count", [16, 100_000])
def test_work_that_nobody_waits_for_at_the_end_of_the_program(count):
    """The thread that runs it is not inside MPI when MPI is finalized."""
    ended = torch_job(f"""
work = [dist.all_reduce(torch.ones({count}), async_op=True) for _ in range(20)]
say("end")
""")
    assert ended.status == 0 and ended.output.count("end\n") == 2, ended.output


def test_work_at_the_end_that_the_other_rank_never_begins():
    ended = torch_job("""
dist.all_reduce(x)
work = dist.all_reduce(x, async_op=True) if rank == 0 else None
say("end")
""")
    assert ended.status == 0 and ended.seconds < 25, ended.output
