"""Ranks that do not started calls that make a communicator or memory: reported, named, no hang.

``guarded`` communicators have had a collective before. On the others, the call is the first one.
"""

import re

import pytest
from fault.launching import job

CALLS = """
def guarded():
    one = hpccoll.Comm(world.Dup())
    for _ in range(9 if GUARDED else 0):  # the ninth one sets it up
        one.Barrier()
    return one
def first(one):
    one.Allreduce(numpy.ones(3), numpy.zeros(3))
CALLS = {"split": lambda one: one.Split(0, rank), "dup": lambda one: one.Dup(),
         "empty": lambda one: one.empty(1000), "agree": lambda one: one.agree(True)}
CALLS |= {"idup": lambda one: one.Idup()[1].Wait()} if GUARDED else {"first": first}
"""


@pytest.mark.parametrize("guarded", [False, True], ids=["first", "guarded"])
def test_missing_rank_is_reported_and_named_in_each_call(guarded):
    ended = job(f"GUARDED = {guarded}" + CALLS + """
comms = {name: guarded() for name in CALLS}
pair = world.Split(rank == 2)
if rank == 2:
    world.recv(source=0)
    for name in ("split", "dup"):
        try:
            CALLS[name](comms[name])
            say("late", name, "returned")
        except hpccoll.HpccollError as error:
            say("late", name, error)
    world.send(0, 0)
else:
    for name, call in CALLS.items():
        try:
            call(comms[name])
            say("error", name, "returned")
        except hpccoll.HpccollError as error:
            say("error", name, type(error).__name__, error)
        pair.Barrier()  # else one rank may be in the next call before the other has left this one
    if rank == 0:
        world.send(0, 2)
        world.recv(source=2)
world.Barrier()
os._exit(0)
""", 3, HPCCOLL_TIMEOUT="0.7", HPCCOLL_REPORT="0.3")
    for rank in (0, 1):
        for name in ("split", "dup", "empty", "agree", "idup" if guarded else "first"):
            found = re.search(rf"^{rank} error {name} (\w+) (.*)", ended.output, re.M)
            assert found and re.search(r"rank 2 is (at |in the program)", found[2]), (
                name, ended.output)
            assert found[1] in ("CollectiveTimeout", "BrokenCommunicatorError"), ended.output
    assert "has waited" in ended.output, ended.output
    for name in ("split", "dup"):
        assert re.search(rf"^2 late {name} .*communicator is broken: ", ended.output, re.M), (
            ended.output)


def test_missing_member_of_a_group_ends_the_others():
    """Ranks of a group have no communicator to meet on: the watchdog ends their processes."""
    ended = job("""
if rank == 2:
    threading.Event().wait()
comm.Create_group(comm.Get_group())
say("returned")
""", 3, HPCCOLL_TIMEOUT="0.7", HPCCOLL_REPORT="0.3")
    assert re.search(r"rank 2 is (at .*|in the program): create_group timed out on rank [01] ",
                     ended.output), ended.output
    assert "create_group on rank 0 has waited" in ended.output, ended.output
    assert re.search("rank [01] exits with status 76 in create_group", ended.output), ended.output
    assert ended.status > 0 and "returned" not in ended.output  # 76, or of a rank that is killed
