"""Errors: what they carry, and which built-in exceptions catch them.

How they read is in ``tests/golden/messages.txt``.
"""

import copy
import inspect
import pickle

import pytest

import hpccoll.errors.contract as contract
import hpccoll.errors.mpi as mpi
from hpccoll import errors
from hpccoll.errors.waits import RankStates


@pytest.mark.parametrize("error, builtins", [
    (errors.ArgumentError("count", "is odd"), (ValueError,)),
    (errors.ArgumentTypeError("op", "is no operator"), (ValueError, TypeError)),
    (errors.BufferArgumentError("recvbuf", "is read-only"), (ValueError, BufferError)),
    (errors.CommunicatorError("freed"), (ValueError,)),
    (errors.ScheduleError("malformed"), (ValueError,)),
    (errors.ProofError("wrong"), (ValueError,)),
    (errors.CollectiveTimeout("allreduce", 1, 2, (0, 3), 5.0), (TimeoutError,)),
    (errors.MessageSizeError("longer"), (RuntimeError,)),
], ids=lambda value: type(value).__name__)
def test_builtin_exceptions_catch_ours(error, builtins):
    assert isinstance(error, errors.HpccollError)
    for builtin in builtins:
        assert isinstance(error, builtin)


def test_every_class_is_ours_and_says_what_it_is():
    for name, value in vars(errors).items():
        if inspect.isclass(value) and value.__module__ == "hpccoll.errors":
            assert issubclass(value, errors.HpccollError) and value.__doc__, name


def test_an_error_at_second_hand_begins_with_the_missing_rank():
    """As the one at first hand: the rank and the reason, each rank, what to do."""
    states = RankStates("rank 2 is stopped", ("rank 0 waits", "rank 2 is stopped"), (2,))
    first = str(errors.CollectiveTimeout("bcast", 0, 1, (2,), 4.0, states)).splitlines()
    assert first[0].startswith("hpccoll: rank 2 is stopped: bcast ") and "round 1" in first[0]
    assert first[1:3] == ["  rank 0 waits", "  rank 2 is stopped"]
    assert "SIGCONT" in first[3] and "rank 2" in first[3] and len(first) == 4
    story = {"number": 7, "title": "bcast", "when": "12:00:01", "reason": "CollectiveTimeout: x",
             "missing": states.missing, "lines": states.lines}
    second = str(errors.BrokenCommunicatorError.from_report(0, story)).splitlines()
    words = "rank 0", "call 7, bcast", "12:00:01", "CollectiveTimeout"
    assert second[0].startswith("hpccoll: rank 2 is stopped: ") and not second[0].endswith(": x")
    assert all(word in second[0] for word in words)
    assert second[1:3] == first[1:3] and "Dup" in second[3] and len(second) == 4
    del story["missing"]
    third = str(errors.BrokenCommunicatorError.from_report(0, story)).splitlines()
    assert all(word in third[0] for word in words) and third[0].endswith("CollectiveTimeout: x")
    assert third[1:] == second[3:]


#: What constructors take that do not take a message alone.
ARGUMENTS = {
    "ArgumentError": ("count", "is odd", "make it even"), "ArgumentTypeError": ("op", "is none"),
    "BufferArgumentError": ("recvbuf", "is read-only"), "RootError": ("root", "is no rank"),
    "OperatorError": ("op", "is none of this type"),
    "PeerLost": ((1, 2), RankStates("rank 1 died"), "call 7"),
    "MpiArgumentError": ("sendbuf", "is wrong", 3), "ConcurrentCallError": ("a:1", "b:2", "T"),
    "ForkedError": (77,), "MpiLibraryError": ("no library", "install one"),
    "CollectiveTimeout": ("bcast", 1, 2, (0, 3), 5.0, RankStates("rank 0 is away")),
    "ForeignMessage": (1, 0), "TuningError": ("/a/table.json", "is empty"),
    "NonFiniteError": ("NaN", (3,)), "ExchangeError": ("stopped", ("w",), (1,)),
    "ExchangeMismatch": ("differ", ("w",), (1,)), "ExchangeStall": ("waits", ("w",), (1,)),
    "RankFailed": ("failed", (), (1,)), "NonFiniteArray": ("NaN", ("w",), (1,)),
    "GroupTimeout": ("all_reduce", 3.0), "ShardError": ({1: ["is missing"]}, "bring it"),
    "FrameworkError": ("jax", "is missing"),
    "CapabilityError": ("multicast", "this transport", "take another"),
    "ContractError": ("call 3", (contract.Party((0, 1), {"operator": "sum"}, ("a:1",)),
                                 contract.Party((2,), {"operator": "max"}, ())))}
CLASSES = sorted({one for module in (errors, contract, mpi) for one in vars(module).values()
                  if inspect.isclass(one) and issubclass(one, errors.HpccollError)},
                 key=lambda one: one.__name__)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_comes_back_whole(cls):
    error = cls(*ARGUMENTS.get(cls.__name__, ("a message",)))
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls and again is not error
        assert str(again) == str(error) and again.args == error.args
        assert vars(again) == vars(error)
    if isinstance(error, mpi.HasErrorClass):
        assert pickle.loads(pickle.dumps(error)).Get_error_class() == error.Get_error_class()


def test_where_a_schedule_is_wrong_comes_back():
    error = errors.ProofError("is wrong", schedule="ring", rank=2, round=1, step="send 3")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.rank, again.step) == (str(error), 2, "send 3")


def test_an_error_of_a_users_own_class():
    assert pickle.loads(pickle.dumps(Mine(5))).number == 5


class Mine(errors.ArgumentError):
    def __init__(self, number):
        self.number = number
        super().__init__("number", f"{number} is wrong")
