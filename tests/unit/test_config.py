"""Environment variables: every one of them, well written and malformed."""

import pytest

from hpccoll.config import NO_TIMEOUT, SETTINGS, Config, check_choice, load, parse_algorithms
from hpccoll.errors import ArgumentError
from hpccoll.ir.topology import Topology


def test_nothing_set_means_the_defaults():
    assert load({}) == load({"HPCCOLL_TIMEOUT": "  ", "PATH": "/bin"}) == Config()
    assert Config().timeout == NO_TIMEOUT and Config().report == 30
    assert Config().segment_bytes == 0


@pytest.mark.parametrize("variable, text, value", [
    ("HPCCOLL_ALGORITHM", "allreduce=ring", {"allreduce": ("ring", {})}),
    ("HPCCOLL_ALGORITHM", " allreduce = ring ; bcast = knomial : k = 4 ; ",
     {"allreduce": ("ring", {}), "bcast": ("knomial", {"k": 4})}),
    ("HPCCOLL_ALGORITHM", "reduce=native;scan=auto",
     {"reduce": ("native", {}), "scan": ("auto", {})}),
    ("HPCCOLL_SEGMENT_BYTES", "1", 1), ("HPCCOLL_SEGMENT_BYTES", "256K", 256 << 10),
    ("HPCCOLL_SEGMENT_BYTES", "2m", 2 << 20), ("HPCCOLL_SEGMENT_BYTES", "1G", 1 << 30),
    ("HPCCOLL_SEGMENT_BYTES", "64KiB", 64 << 10), ("HPCCOLL_SEGMENT_BYTES", "64kB", 64 << 10),
    ("HPCCOLL_TOPOLOGY", "2x4", Topology((4, 4))),
    ("HPCCOLL_TIMEOUT", "12.5", 12.5), ("HPCCOLL_TIMEOUT", "off", NO_TIMEOUT),
    ("HPCCOLL_TIMEOUT", "inf", NO_TIMEOUT), ("HPCCOLL_REPORT", "1e2", 100.0),
    ("HPCCOLL_SHARED_MEMORY", "no", False), ("HPCCOLL_SHARED_MEMORY", "YES", True),
    ("HPCCOLL_SHARED_MEMORY", "0", False), ("HPCCOLL_SHARED_MEMORY", "1", True),
    ("HPCCOLL_TUNING", "off", "off"), ("HPCCOLL_TUNING", "online", "online"),
    ("HPCCOLL_TUNING", "probe", "probe"),
    ("HPCCOLL_TUNING", "./table", "./table"), ("HPCCOLL_TUNING", "here.json", "here.json"),
    ("HPCCOLL_PROGRESS", "calls", "calls"), ("HPCCOLL_PROGRESS", "thread", "thread"),
    ("HPCCOLL_DETERMINISM", "run", "run"), ("HPCCOLL_DETERMINISM", "layout", "layout"),
    ("HPCCOLL_LEVELS", "node, socket", ("node", "socket")), ("HPCCOLL_NETWORK", "/a/b", "/a/b"),
    ("HPCCOLL_TRACE", "traces/", "traces/"), ("HPCCOLL_TRACE_PHASES", "yes", True),
    ("HPCCOLL_HUGE_PAGES", "no", False),
    ("HPCCOLL_CHECKSUMS", "yes", True), ("HPCCOLL_CHECK", "nan", ("nan",)),
    ("HPCCOLL_CHECK", " results, nan ", ("results", "nan")),
    ("HPCCOLL_DETERMINISM", "any-p", "any-p"),
    ("HPCCOLL_CONTRACT", "always", "always"), ("HPCCOLL_CONTRACT", "off", "off"),
    ("HPCCOLL_LOG", "info", "info"), ("HPCCOLL_LOG", "DEBUG", "debug"),
    ("HPCCOLL_PROFILE", "yes", True)])
def test_well_written(variable, text, value):
    config = load({variable: text})
    assert getattr(config, SETTINGS[variable].field) == value
    assert config == Config()._replace(**{SETTINGS[variable].field: value})


MALFORMED = [
    ("HPCCOLL_ALGORITHM", "ring", "'ring' is unknown"),
    ("HPCCOLL_ALGORITHM", "allreduce=", "has no algorithm ''"),
    ("HPCCOLL_ALGORITHM", "allreduce=rign", "has no algorithm 'rign'; did you mean 'ring'"),
    ("HPCCOLL_ALGORITHM", "allreduc=ring", "'allreduc' is unknown; did you mean 'allreduce'"),
    ("HPCCOLL_ALGORITHM", "bcast=knomial:k", "cannot read 'k'; write it like k=4"),
    ("HPCCOLL_ALGORITHM", "bcast=knomial:k=two", "cannot read 'k=two'"),
    ("HPCCOLL_ALGORITHM", "bcast=knomial:=4", "cannot read '=4'"),
    ("HPCCOLL_ALGORITHM", "bcast=knomial,k=4", "write parameters like knomial:k=4"),
    ("HPCCOLL_SEGMENT_BYTES", "0", "must be at least 1 byte"),
    ("HPCCOLL_SEGMENT_BYTES", "0K", "must be at least 1 byte"),
    ("HPCCOLL_SEGMENT_BYTES", "-4K", "cannot read '-4K' as a size"),
    ("HPCCOLL_SEGMENT_BYTES", "2048T", "is more than 1 PiB"),
    ("HPCCOLL_SEGMENT_BYTES", "4 apples", "cannot read '4 apples'"),
    ("HPCCOLL_SEGMENT_BYTES", "K", "cannot read 'K'"),
    ("HPCCOLL_SEGMENT_BYTES", "1.5M", "cannot read '1.5M'"),
    ("HPCCOLL_TOPOLOGY", "2y4", "cannot read '2y4' at position 1"),
    ("HPCCOLL_TIMEOUT", "0", "must be seconds above 0, or 'off'; got '0'"),
    ("HPCCOLL_TIMEOUT", "-1", "must be seconds above 0"),
    ("HPCCOLL_TIMEOUT", "nan", "must be seconds above 0"),
    ("HPCCOLL_TIMEOUT", "soon", "got 'soon'"),
    ("HPCCOLL_REPORT", "x", "must be a positive number of seconds; got 'x'"),
    ("HPCCOLL_REPORT", "inf", "must be a positive"),
    ("HPCCOLL_SHARED_MEMORY", "maybe", "must be 'yes' or 'no'"),
    ("HPCCOLL_TUNING", "onlin", "must be 'online', 'probe', 'off', or a path, which contains a /"),
    ("HPCCOLL_DETERMINISM", "runs", "'runs' is unknown; did you mean 'run'; choose from"),
    ("HPCCOLL_PROGRESS", "no", "'no' is unknown; choose from thread, calls"),
    ("HPCCOLL_LEVELS", "node,core", "'core' is no level"),
    ("HPCCOLL_LEVELS", "switch", "'node' is missing"),
    ("HPCCOLL_NETWORK", "/etc/slurm/", "is a directory"),
    ("HPCCOLL_TRACE", __file__, "is a file, not a folder"),
    ("HPCCOLL_EXECUTOR", "c", "must be 'compiled' or 'python'"),
    ("HPCCOLL_CONTRACT", "tag", "'tag' is unknown; did you mean 'tags'"),
    ("HPCCOLL_CHECKSUMS", "crc", "must be 'yes' or 'no'"),
    ("HPCCOLL_CHECK", "nans", "'nans' is unknown; did you mean 'nan'"),
    ("HPCCOLL_HUGE_PAGES", "2M", "must be 'yes' or 'no'"),
    ("HPCCOLL_LOG", "verbose", "must be 'info' or 'debug'"),
    ("HPCCOLL_PROFILE", "on", "must be 'yes' or 'no'"),
    ("HPCCOLL_TRACE_PHASES", "on", "must be 'yes' or 'no'"),
]


@pytest.mark.parametrize("variable, text, complaint", MALFORMED)
def test_malformed_values_name_their_variable(variable, text, complaint):
    with pytest.raises(ArgumentError) as caught:
        load({variable: text})
    assert caught.value.argument == variable
    assert complaint in str(caught.value)
    assert variable not in str(caught.value).removeprefix(variable)  # one statement about it
    assert "expected" not in str(caught.value)


def test_every_variable_is_tested_both_ways_and_has_a_field():
    assert {variable for variable, *_ in MALFORMED} == set(SETTINGS)
    assert [setting.field for setting in SETTINGS.values()] == list(Config._fields)
    assert all("\n" not in setting.help for setting in SETTINGS.values())


def test_a_variable_that_does_not_exist_is_an_error():
    with pytest.raises(ArgumentError,
                       match="HPCCOLL_TIMOUT: .*'HPCCOLL_TIMEOUT'"):
        load({"HPCCOLL_TIMOUT": "5"})


def test_choices():
    assert check_choice("allreduce", "ring") == "ring"
    assert check_choice("allreduce", "native") == "native"
    assert parse_algorithms("") == {}
    with pytest.raises(ArgumentError, match="'alreduce'"):
        check_choice("alreduce", "ring")
