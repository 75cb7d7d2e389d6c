"""Environment variables: every one, well formed and not."""

import pytest

from hpccoll import config
from hpccoll.errors import ArgumentError
from hpccoll.topology import Topology


def test_nothing_set_gives_the_defaults():
    assert config.load({"PATH": "/bin", "HPCCOLL_TOPOLOGY": " "}) == config.Config()


@pytest.mark.parametrize("variable, text, field, value", [
    ("HPCCOLL_ALGORITHM", "allreduce=ring; bcast=knomial,k=8 ;reduce=native;scan=auto", "algorithm",
     {"allreduce": ("ring", {}), "bcast": ("knomial", {"k": 8}), "reduce": ("native", {}),
      "scan": ("auto", {})}),
    ("HPCCOLL_SEGMENT_BYTES", "64K", "segment_bytes", 64 << 10),
    ("HPCCOLL_SEGMENT_BYTES", "1000", "segment_bytes", 1000),
    ("HPCCOLL_TOPOLOGY", "2x4", "topology", Topology((4, 4))),
    ("HPCCOLL_TIMEOUT", "1.5", "timeout", 1.5),
    ("HPCCOLL_REPORT", "2", "report", 2.0),
    ("HPCCOLL_SHARED_MEMORY", "No", "shared_memory", False),
])
def test_every_variable_is_read(variable, text, field, value):
    assert getattr(config.load({variable: text}), field) == value


def test_the_table_of_tests_is_complete():
    fields = {setting.field for setting in config.SETTINGS.values()}
    assert fields == set(config.Config._fields)


@pytest.mark.parametrize("variable, text", [
    ("HPCCOLL_ALGORITHM", "allreduce"), ("HPCCOLL_ALGORITHM", "allreduce=nothing"),
    ("HPCCOLL_ALGORITHM", "nothing=ring"), ("HPCCOLL_ALGORITHM", "bcast=knomial,k"),
    ("HPCCOLL_ALGORITHM", "bcast=knomial,k=x"), ("HPCCOLL_SEGMENT_BYTES", "0"),
    ("HPCCOLL_SEGMENT_BYTES", "-1"), ("HPCCOLL_SEGMENT_BYTES", "many"),
    ("HPCCOLL_SEGMENT_BYTES", "K"), ("HPCCOLL_TOPOLOGY", "2x"), ("HPCCOLL_TIMEOUT", "0"),
    ("HPCCOLL_TIMEOUT", "nan"), ("HPCCOLL_TIMEOUT", "inf"), ("HPCCOLL_REPORT", "soon"),
    ("HPCCOLL_SHARED_MEMORY", "maybe"), ("HPCCOLL_TIMEOUTS", "3"),
])
def test_a_malformed_value_names_its_variable(variable, text):
    with pytest.raises(ArgumentError, match=variable) as caught:
        config.load({variable: text})
    assert isinstance(caught.value, ValueError)


def test_an_unknown_algorithm_lists_the_valid_ones():
    with pytest.raises(ArgumentError, match="recursive_doubling"):
        config.check_choice("allreduce", "rings")
    with pytest.raises(ArgumentError, match="reduce_scatter"):
        config.check_choice("alreduce", "ring")
