"""The tuning table: what is written is read again, and every abuse is an error with a reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpccoll.errors import TuningError
from hpccoll.tune import table
from hpccoll.tune.loading import TIE, JobTimes, default_path, times_at
from hpccoll.tune.table import (
    Candidate,
    Fingerprint,
    add_checksum,
    average,
    merge,
    parse,
    read,
    render,
    write,
)
from support.folded import folded

NATIVE, RING, PAT, LINEAR = map(Candidate, ("native", "ring", "pat", "linear"))
KNOMIAL = Candidate("knomial", (("k", 8),), 65536)
HERE = Fingerprint("MPICH 5.0.2", "a processor x 2", 4, "2x2", False)
THERE = HERE._replace(ranks=8, topology="8", oversubscribed=True)
CURVES = {("allreduce", True): ((8, {NATIVE: 1e-6, RING: 3e-6}),
                                (1 << 20, {NATIVE: 2e-3, RING: 1e-3})),
          ("allreduce", False): ((8, {NATIVE: 2e-6}),),
          ("bcast", True): ((64, {KNOMIAL: 0.5}),),
          ("barrier", True): ((0, {NATIVE: 1.0}),)}
PROBE = HERE._replace(probe=True)
TABLE = {HERE: CURVES, THERE: {("scan", True): ((8, {NATIVE: 1.5e-6}),)},
         PROBE: {("scan", True): ((64, {NATIVE: 2.5e-6}),)}}
TEXT = render(TABLE)


def refused(text, reason):
    with pytest.raises(TuningError) as caught:
        parse(text, "some.json")
    assert caught.value.path == "some.json" and caught.value.problem in str(caught.value)
    assert str(caught.value).startswith("tuning table some.json: ")
    assert reason in caught.value.problem, caught.value.problem


def changed(old, new):
    """A table with another text in one place, and a checksum that fits."""
    body = TEXT[:TEXT.index('"checksum"')]
    assert old in body
    return add_checksum(body.replace(old, new, 1))


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "deep" / "er" / "table.json"
    write(path, TABLE)
    assert read(path) == TABLE
    write(path, {HERE: CURVES})
    assert read(path) == {HERE: CURVES}
    assert [entry.name for entry in path.parent.iterdir()] == ["table.json"]
    assert parse(render({}), "") == {}


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    write(tmp_path / "link.json", TABLE)
    assert (tmp_path / "link.json").is_symlink() and read(tmp_path / "real.json") == TABLE


def test_new_curves_join_the_old_ones():
    new = {("reduce", True): ((8, {RING: 1.0}),)}
    joined = merge(TABLE, HERE, new)
    assert joined[THERE] == TABLE[THERE] and joined[HERE] == {**CURVES, **new}
    assert merge({}, HERE, new) == {HERE: new}


def test_times_of_the_same_calls_are_averaged():
    """The machine was in another state: what only one of them has is taken to have changed as the
    candidate in the middle did."""
    old = ((8, {NATIVE: 2.0, RING: 4.0, KNOMIAL: 1.0, PAT: 1.0}), (64, {NATIVE: 1.0}))
    new = ((8, {NATIVE: 4.0, RING: 8.0, KNOMIAL: 3.0, LINEAR: 6.0}), (512, {RING: 2.0}))
    both = ((8, {NATIVE: 3.0, RING: 6.0, KNOMIAL: 2.0, PAT: 1.5, LINEAR: 4.5}),
            (64, {NATIVE: 1.0}), (512, {RING: 2.0}))
    assert average(old, new) == both
    assert average(old, old) == old
    kind = "allreduce", True
    assert merge({HERE: {kind: old}}, HERE, {kind: new}) == {HERE: {kind: both}}
    # Three tunings: the last one counts half.
    assert dict(average(both, both))[8][NATIVE] == 3.0
    assert dict(average(both, ((8, {NATIVE: 5.0}),)))[8][NATIVE] == 4.0
    # A probe of a few seconds is made once, and again only where nothing else is known.
    assert merge({PROBE: {kind: old}}, PROBE, {kind: new}) == {PROBE: {kind: new}}


def test_old_times_of_a_candidate_that_was_wrong_go():
    old = {("allreduce", True): ((8, {NATIVE: 1.0, RING: 1.0}), (64, {RING: 1.0})),
           ("allreduce", False): ((8, {NATIVE: 1.0, RING: 1.0}),),
           ("allgather", True): ((8, {NATIVE: 1.0, RING: 1.0}),)}
    new = {("allreduce", True): ((8, {NATIVE: 3.0}),)}
    assert merge({HERE: old}, HERE, new, [("allreduce", RING)]) == {HERE: {
        ("allreduce", True): ((8, {NATIVE: 2.0}),),
        ("allreduce", False): ((8, {NATIVE: 1.0}),),
        ("allgather", True): old["allgather", True]}}


def test_a_probe_has_an_entry_of_its_own(tmp_path):
    table = {HERE: {("bcast", True): CURVES["bcast", True]}, PROBE: CURVES}
    write(tmp_path / "table.json", table)
    assert read(tmp_path / "table.json") == table and render(table).count('"probe"') == 1
    assert parse(changed('"points"', '"probe": false, "points"'), "") == TABLE


def test_tuning_replaces_what_a_probe_found():
    bcast = {("bcast", True): CURVES["bcast", True]}
    probed = merge({}, PROBE, CURVES)
    assert probed == {PROBE: CURVES}
    joined = merge(probed, HERE, bcast)
    assert joined[HERE] == bcast and set(joined[PROBE]) == set(CURVES) - set(bcast)
    assert merge(joined, HERE, CURVES) == {HERE: CURVES}
    assert merge({HERE: bcast}, PROBE, CURVES) == {HERE: bcast, PROBE: CURVES}


@folded("length", range(len(TEXT)))
def test_cut_off_at_every_byte(length):
    refused(TEXT[:length], "is empty" if not length else "is corrupt or truncated")


@pytest.mark.slow
def test_a_flipped_bit_of_every_byte(tmp_path):
    raw = TEXT.encode()
    path = tmp_path / "table.json"
    for position in range(len(raw)):
        damaged = raw[position] ^ 1 << position * 3 % 8
        path.write_bytes(raw[:position] + bytes([damaged]) + raw[position + 1:])
        with pytest.raises(TuningError, match="corrupt|hpccoll|twice|number") as caught:
            read(path)
        assert caught.value.path == str(path)


@pytest.mark.parametrize("old, new, reason", [
    ('"format": 1', '"format": 2', "was written by a newer hpccoll: format 2, this one reads 1"),
    ('"format": 1', '"format": 0', "an older hpccoll"),
    ('"format": 1', '"format": 1.0', "is not a tuning table"),
    ('"format": 1', '"formal": 1', "is not a tuning table"),
    ('"ring"', '"rign"', "unknown algorithm: allreduce 'rign'"),
    ('"ring"', '"binomial"', "unknown algorithm: allreduce 'binomial'"),
    ('"ring"', '"native:k=2"', "unknown algorithm: allreduce 'native'"),
    ('"ring"', '"ring:k=2"', "unknown parameter: allreduce 'ring:k=2'"),
    ('"ring"', '"ring:segment=0"', "cannot be read: 'ring:segment=0'"),
    ('"ring"', '""', "cannot be read: ''"),
    ('"ring": 3e-06', '"ring": NaN', "no number: NaN"),
    ('"ring": 3e-06', '"ring": -Infinity', "no number: -Infinity"),
    ('"ring": 3e-06', '"ring": 1e999', "no number of seconds: allreduce at 8 bytes, ring inf"),
    ('"ring": 3e-06', '"ring": ' + "9" * 400, "no number of seconds"),
    ('"ring": 3e-06', '"ring": -3e-06', "not positive: allreduce at 8 bytes, ring -3e-06"),
    ('"ring": 3e-06', '"ring": 0', "not positive"),
    ('"ring": 3e-06', '"ring": "3e-06"', "no number of seconds"),
    ('"ring": 3e-06', '"ring": true', "no number of seconds"),
    ('"ring": 3e-06', '"native": 3e-06', "twice"),
    ('"nbytes": 8', '"nbytes": -8', "negative size: allreduce at -8 bytes"),
    ('"nbytes": 8', '"nbytes": 1048576', "two points for allreduce at 1048576 bytes"),
    ('"nbytes": 8', '"nbytes": 8.0', "nbytes of a point must be of type int"),
    ('"nbytes": 8', '"nbytes": true', "nbytes of a point must be of type int"),
    ('"nbytes": 8,', "", "a point must have the fields"),
    ('"nbytes": 8,', '"nbytes": 8, "more": 1,', "a point must have the fields"),
    ('"allreduce"', '"alreduce"', "unknown collective 'alreduce'"),
    ('"seconds": {"native": 1e-06, "ring": 3e-06}', '"seconds": {}', "no candidate"),
    ('"ranks": 8, "topology": "8", "oversubscribed": true', '"ranks": 4, "topology": "2x2", '
     '"oversubscribed": false', "two entries for one machine"),
    ('   "probe": true,\n', "", "two entries for one machine"),
    ('"points"', '"probe": 1, "points"', "probe of an entry must be of type bool"),
    ('"points"', '"probe": null, "points"', "probe of an entry must be of type bool"),
    ('"oversubscribed": false', '"oversubscribed": false, "probe": true',
     "a machine must have the fields"),
    ('"ranks": 4', '"ranks": "4"', "ranks of a machine must be of type int"),
    ('"entries": [', '"entries": 1, "more": [', "must have the fields"),
    ('"machine": {', '"machine": 1, "more": {', "must have the fields"),
])
def test_well_formed_and_wrong(old, new, reason):
    refused(changed(old, new), reason)


@pytest.mark.parametrize("text, reason", [
    ("", "is empty"), ("\n", "corrupt or truncated"), ("[]", "is not a tuning table of hpccoll"),
    ("null", "is not a tuning table"), ("{}", "is not a tuning table"), ("\0" * 99, "corrupt"),
    ('{"format": 1}', "does not end with a checksum"), ("[" * 100000, "corrupt"),
    (TEXT + TEXT, "corrupt"), (TEXT + "\n", "does not end with a checksum"),
    (TEXT.replace("3e-06", "4e-06"), "changed by hand: its checksum does not fit")])
def test_no_tables_at_all(text, reason):
    refused(text, reason)


def test_files_that_cannot_be_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "binary").write_bytes(b"\xff\xfe{}")
    for path, reason in ((tmp_path / "missing", "No such file"), (tmp_path, "is a directory"),
                         (pipe, "is not a regular file"), ("/dev/zero", "is not a regular file"),
                         (tmp_path / "binary", "corrupt at byte 0: not UTF-8")):
        with pytest.raises(TuningError, match=reason) as caught:
            read(path)
        assert caught.value.path == str(path) and str(path) in str(caught.value)


def test_files_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "table.json", "/proc/none/table.json"):
        with pytest.raises(TuningError, match="cannot write it"):
            write(path, TABLE)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_error_while_writing_leaves_the_old_table(tmp_path, monkeypatch, step):
    def fail(*args):
        raise OSError(28, "No space left on device")

    path = tmp_path / "table.json"
    write(path, TABLE)
    monkeypatch.setattr(table.os, step, fail)
    with pytest.raises(TuningError, match="No space left"):
        write(path, {})
    assert read(path) == TABLE and [e.name for e in tmp_path.iterdir()] == ["table.json"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_process_killed_while_writing_leaves_the_old_table(tmp_path, step):
    path = tmp_path / "table.json"
    write(path, TABLE)
    killed = subprocess.run([sys.executable, "-c", (
        "import os, signal\n"
        "from hpccoll.tune import table\n"
        f"table.os.{step} = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"table.write({str(path)!r}, {{}})")], check=False, timeout=60,
        cwd=Path(table.__file__).parents[2])
    assert killed.returncode == -9 and read(path) == TABLE
    write(path, {HERE: CURVES})  # what the other process left behind is in nobody's way
    assert read(path) == {HERE: CURVES}


@pytest.mark.parametrize("label", ["", ":k=2", "ring:", "ring:k", "ring:k=", "ring:k=02", "a:k=-1",
                                   "a:k=1.5", "a:k=1:k=2", "a:1=2", "a:k=" + "9" * 19])
def test_labels_that_are_none(label):
    assert Candidate.read(label) is None


def test_the_default_place(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_path() == "/cache/hpccoll/tuning.json"
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        monkeypatch.setenv("HOME", "/home/me")
        assert default_path() == "/home/me/.cache/hpccoll/tuning.json"


# -- between the points --------------------------------------------------------------------
CURVE = ((100, {NATIVE: 1.0, RING: 4.0}), (300, {NATIVE: 5.0, RING: 4.0, KNOMIAL: 1.0}),
         (400, {KNOMIAL: 2.0}))


@pytest.mark.parametrize("nbytes, expected", [
    (0, {NATIVE: 1, RING: 4}), (100, {NATIVE: 1, RING: 4}), (200, {NATIVE: 3, RING: 4}),
    (250, {NATIVE: 4, RING: 4}), (300, {NATIVE: 5, RING: 4, KNOMIAL: 1}), (350, {KNOMIAL: 1.5}),
    (400, {KNOMIAL: 2}), (1 << 40, {KNOMIAL: 2})])
def test_times_between_measured_sizes(nbytes, expected):
    assert times_at(CURVE, nbytes) == expected


def test_rankings():
    tuned = JobTimes({("scan", True): CURVE, ("exscan", False): CURVE})
    assert [t.candidate.name for t in tuned.ranking("scan", True, 100)] == ["native", "ring"]
    assert [t.candidate.name for t in tuned.ranking("scan", True, 300)] == [
        "knomial", "ring", "native"]
    assert tuned.ranking("scan", False, 300) == tuned.ranking("scan", True, 300)
    assert tuned.ranking("exscan", True, 300) == () == tuned.ranking("bcast", True, 300)
    for nbytes in range(5000):
        tuned.ranking("scan", True, nbytes)
    assert len(tuned._rankings) <= 1024


def test_native_wins_what_noise_could_decide():
    for ours, first in ((TIE * 1.01, "native"), (TIE * 0.99, "ring")):
        tuned = JobTimes({("scan", True): ((8, {NATIVE: 1.0, RING: ours}),)})
        assert tuned.ranking("scan", True, 8)[0][0].name == first
    for variant, first in ((TIE * 1.01, RING), (TIE * 0.99, KNOMIAL)):
        tuned = JobTimes({("scan", True): ((8, {RING: 1.0, KNOMIAL: variant}),)})
        assert tuned.ranking("scan", True, 8)[0][0] == first
