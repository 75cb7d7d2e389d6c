"""Rules from tables of measured times."""

import pytest
from click.testing import CliRunner
from derive_rules import choices, command, ranges_of, spans

from hpccoll.algorithms import ALGORITHMS
from hpccoll.config import NATIVE
from hpccoll.tune.one_node_rules import ROWS
from hpccoll.tune.table import Candidate, Fingerprint, write


def curve(**times):
    """Times by size of the library and of algorithms: ``ring=(3, 2, 1)``; 0 for none."""
    return tuple((8 << 2 * number, {Candidate(name): row[number] for name, row in times.items()
                                    if row[number]})
                 for number in range(len(times[NATIVE])))


@pytest.mark.parametrize("times, expected", [
    ({NATIVE: (9, 9, 9), "ring": (3, 3, 3), "linear": (4, 4, 4)}, ["ring"] * 3),
    # A gain of a fifth at one size is worth no range of its own.
    ({NATIVE: (9, 9, 9), "ring": (3, 3, 3), "linear": (4, 2.6, 4)}, ["ring"] * 3),
    ({NATIVE: (9, 9, 9), "ring": (3, 3, 3), "linear": (4, 1, 4)}, ["ring", "linear", "ring"]),
    # No algorithm where the library is as fast, nor one with parameters.
    ({NATIVE: (9, 3.1, 9), "ring": (3, 3, 3)}, ["ring", NATIVE, "ring"]),
    ({NATIVE: (9, 9), "ring": (0, 3)}, [NATIVE, "ring"])])
def test_choices(times, expected):
    assert choices("allreduce", curve(**times)) == expected


def test_ranges_end_between_sizes():
    times = curve(**{NATIVE: (9, 9, 9), "ring": (1, 1, 0), "linear": (0, 0, 1)})
    found = list(spans("allreduce", times, (5, 11), "MPICH"))
    assert [(one.algorithm, one.nbytes) for one in found] == [("ring", (1, 65)),
                                                              ("linear", (65, 129))]
    # Two ranks repeat better, and what is best at the largest size stays so.
    times = [(16 << 20, times[0][1]), (64 << 20, {Candidate(NATIVE): 1.3, Candidate("ring"): 1.0})]
    assert [one.nbytes for one in spans("allreduce", times, (2, 2), "MPICH")] == [(1, 0)]
    times[-1][1][Candidate(NATIVE)] = 1.2  # reads of large messages have two speeds
    assert [one.nbytes for one in spans("allreduce", times, (2, 2), "MPICH")] == [(1, 0)]
    assert [one.nbytes for one in spans("allgather", times, (2, 2), "MPICH")] == [
        (1, (32 << 20) + 1)]
    assert ranges_of([2, 4, 8, 16]) == {2: (2, 2), 4: (3, 5), 8: (6, 11), 16: (12, 24)}


def test_a_module_is_written(tmp_path):
    table, module = tmp_path / "table.json", tmp_path / "rules.py"
    for library in "MPICH 5.0.2", "Open MPI 5.0.11":
        machine = Fingerprint(library, "a processor x 2", 8, "8", True)
        table = tmp_path / f"{library}.json"
        times = curve(**{NATIVE: (9.0, 9.0), "linear": (1.0, 1.0)})
        write(table, {machine: {("bcast", True): times}})
    result = CliRunner().invoke(command, [*map(str, tmp_path.glob("*.json")), "-o", str(module)])
    assert result.exit_code == 0, result.output
    names = {}
    exec(module.read_text(), names)
    assert names["ROWS"] == (("bcast", "linear", 1, 33, 2, 12, ("MPICH", "Open MPI")),)


def test_rows_name_algorithms():
    for collective, algorithm, least, end, fewest, most, libraries in ROWS:
        assert algorithm in ALGORITHMS[collective] and libraries
        assert least < (end or 1 << 62)
        assert 2 <= fewest <= most
