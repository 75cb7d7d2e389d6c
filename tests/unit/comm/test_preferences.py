"""``comm.using``: checked at once, in force inside ``with``, and never dropped in silence."""

import gc
import warnings

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ArgumentError, ArgumentTypeError


@pytest.fixture
def comm():
    return hpccoll.Comm(MPI.COMM_SELF)


@pytest.mark.parametrize("wrong, error", [
    ({"allreduce": "nix"}, ArgumentError), ({"allsum": "ring"}, ArgumentError),
    ({"allreduce": 3}, ArgumentTypeError), ({"segment_bytes": -1, "bcast": "ring"}, ArgumentError)])
def test_what_is_wrong_is_said_at_once(comm, wrong, error):
    with pytest.raises(error):
        comm.using(**wrong)


@pytest.mark.parametrize("nbytes", ["1M", "1Q", -1])
def test_segments_of_no_algorithm_are_refused(comm, nbytes):
    for ask in (comm.using, comm.choose):
        with pytest.raises(ArgumentError, match="segment_bytes"):
            ask(segment_bytes=nbytes)


def test_without_with_it_changes_nothing_and_says_so(comm):
    with pytest.warns(RuntimeWarning, match=r"'with comm.using\(...\):'"):
        comm.using(allreduce="ring")
        gc.collect()
    assert comm._preferences == {}


def test_it_can_be_entered_again_and_within_itself(comm):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ring = comm.using(allreduce="ring")
        for _ in range(2):
            with ring as same, ring, comm.using(bcast="binomial"):
                assert same is comm
                assert {name: preference.name for name,
                        preference in comm._preferences.items()} == {
                    "allreduce": "ring", "bcast": "binomial"}
            assert comm._preferences == {}
        del ring
        gc.collect()


def test_parameters_are_part_of_the_name_or_beside_it(comm):
    for written in ("knomial:k=3", ("knomial", {"k": 3}), ("knomial:k=2", {"k": 3})):
        with comm.using(bcast=written):
            assert comm._preferences["bcast"][:2] == ("knomial", {"k": 3})
    with pytest.raises(ArgumentError, match="bcast: .*'k'"):
        comm.using(bcast="knomial:k")


def test_it_decorates_functions(comm):
    @comm.using(allreduce="ring")
    def asks():
        return comm._preferences["allreduce"].name

    assert asks() == "ring" and comm._preferences == {}
