"""Errors: what they carry, how they read, and which built-in exceptions catch them."""

import inspect

import pytest

from hpccoll import errors


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


def test_argument_error_says_what_and_what_to_do():
    error = errors.ArgumentError("root", "7 is not a rank", "choose one of 0..3")
    assert str(error) == "root: 7 is not a rank; choose one of 0..3"
    assert error.argument == "root"
    assert str(errors.ArgumentError("root", "missing")) == "root: missing"


def test_proof_error_names_the_place():
    error = errors.ProofError("is wrong", schedule="allreduce ring size=4", rank=2, round=1,
                              step="send 3 out[0]")
    assert str(error) == "allreduce ring size=4, rank 2, round 1, step 'send 3 out[0]': is wrong"
    assert (error.problem, error.rank, error.round, error.step) == (
        "is wrong", 2, 1, "send 3 out[0]")
    assert str(errors.ProofError("is wrong")) == "is wrong"
    assert str(errors.ProofError("is wrong", rank=0, round=0)) == "rank 0, round 0: is wrong"


def test_timeout_names_who_is_waited_for():
    error = errors.CollectiveTimeout("allreduce ring size=4", 2, 5, (1, 3), 300.0)
    text = str(error)
    assert "allreduce ring size=4 on rank 2" in text and "300 s in round 5" in text
    assert "rank(s) 1, 3" in text and "HPCCOLL_TIMEOUT" in text
    assert (error.rank, error.round, error.peers, error.seconds) == (2, 5, (1, 3), 300.0)
    assert "rank(s) nobody" in str(errors.CollectiveTimeout("barrier", 0, 0, (), 1.0))
