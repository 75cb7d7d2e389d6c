"""Forms of calls: which method, which candidates, and what does not go together."""

import numpy
import pytest

from hpccoll.config import Config
from hpccoll.errors import ArgumentError
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.call_forms import FORMS, LowerCase, NonblockingForm, check
from hpccoll.measure.cases import make
from hpccoll.tune.table import Candidate


def test_each_form_has_a_method():
    assert {word: form.method("reduce_scatter") for word, form in FORMS.items()} == {
        "blocking": "Reduce_scatter", "nonblocking": "Ireduce_scatter",
        "persistent": "Reduce_scatter_init", "lower-case": "reduce_scatter"}
    assert NonblockingForm.method("allreduce") == "Iallreduce"


@pytest.mark.parametrize("word, collectives, in_place, peers, problem", [
    ("lower-case", ["alltoall"], False, False, "alltoall.*lower-case"),
    ("lower-case", ["allreduce"], True, False, "combined"),
    ("persistent", ["bcast"], False, True, "blocking calls only")])
def test_what_does_not_go_together(word, collectives, in_place, peers, problem):
    with pytest.raises(ArgumentError, match=problem):
        check(FORMS[word], collectives, in_place, peers)
    check(FORMS["blocking"], collectives, in_place, peers)


def test_objects_have_no_choice_of_algorithms():
    case = make("allreduce", 2, 4, numpy.dtype("f4"))
    memory = CaseBuffers(case, 0)
    chosen, refused = LowerCase.select([Candidate("native"), Candidate("ring")], case, memory,
                                       False)
    assert chosen == [Candidate("native")] and list(refused) == ["ring"]
    assert isinstance(LowerCase(memory, None).arguments[0], float)


def test_nonblocking_calls_are_native_unless_asked():
    case = make("allreduce", 2, 4096, numpy.dtype("f4"))
    assert NonblockingForm.auto_choice(case, Config()) == "native"
    asked = Config()._replace(algorithm={"allreduce": ("ring", {})})
    assert NonblockingForm.auto_choice(case, asked) == "ring"
