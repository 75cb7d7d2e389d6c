"""Table of the environment variables: names, meanings, defaults.

The first use of a communicator reads them. A malformed value raises an error.

A new setting is a field of :class:`Config`, with its default, and a line of :data:`SETTINGS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from hpccoll.errors import ArgumentError
from hpccoll.machine.level_names import LEVELS, NODE, SWITCH

if TYPE_CHECKING:
    from hpccoll.ir.topology import Topology

#: Choices other than algorithms: the MPI library's collective, and the choice of tuning.
NATIVE, AUTO = "native", "auto"
#: Choices for arrays of GPUs: NCCL; or NCCL inside nodes and hpccoll's algorithms between nodes, by
#: all ranks of a node or by one.
NCCL, NCCL_RAILS, NCCL_LEADER = "nccl", "nccl+rails", "nccl+leader"
#: The collectives that these choices support.
QUEUED = {NCCL: ("allgather", "allreduce", "alltoall", "bcast", "gather", "reduce",
                 "reduce_scatter", "scatter"),
          NCCL_RAILS: ("allreduce",), NCCL_LEADER: ("allreduce",)}
#: Values of ``HPCCOLL_TUNING`` other than a path.
OFF, ONLINE, PROBE = "off", "online", "probe"
#: Determinism classes, weakest first: the bits of a result must not depend on these properties.
DETERMINISM = NONE, RUN, SIZE, LAYOUT, ANY_P = "none", "run", "size", "layout", "any-p"
#: Progress of nonblocking and persistent collectives: by a thread and calls, or by calls only.
PROGRESS = THREAD, CALLS = "thread", "calls"
#: Comparison of calls between ranks: none, by tags of messages, or before every call.
CONTRACT = OFF, TAGS, ALWAYS = "off", "tags", "always"
#: Checks of data: NaN in the input, equal results.
CHECKS = NAN, RESULTS = "nan", "results"
#: Executors of plans: compiled C, if it was built, or Python.
EXECUTORS = COMPILED, INTERPRETED = "compiled", "python"
#: Log levels: choices and errors, or also every plan.
LOG = INFO, DEBUG = "info", "debug"
#: No timeout.
NO_TIMEOUT = float("inf")


class Config(NamedTuple):
    """Settings of one communicator; :data:`SETTINGS` explains them.

    ``timeout`` and ``report`` are in seconds; ``segment_bytes`` is 0 for the machine's limits.

    >>> Config().override(timeout="off", progress=None) == Config()
    True
    """

    algorithm: Mapping[str, tuple[str, Mapping[str, int]]] = {}
    segment_bytes: int = 0
    topology: Topology | None = None
    timeout: float = NO_TIMEOUT
    report: float = 30.0
    shared_memory: bool = True
    tuning: str = ""
    determinism: str = NONE
    progress: str = THREAD
    levels: tuple[str, ...] = (SWITCH, NODE)
    network: str = ""
    trace: str = ""
    trace_phases: bool = False
    executor: str = ""
    huge_pages: bool = True
    contract: str = TAGS
    checksums: bool = False
    check: tuple[str, ...] = ()
    log: str = ""
    profile: bool = False

    def override(self, **values: Any) -> Config:
        """Replace the settings whose value is not ``None``.

        Raises:
            ArgumentError: a value is invalid; names the setting.
        """
        return self._replace(**{name: OPTIONS[name](value) for name, value in values.items()
                                if value is not None})


def _text(value: Any) -> str:
    """Return the text of a value, for comparison between ranks and for messages."""
    if isinstance(value, bool):
        return "'yes'" if value else "'no'"
    return repr(value) if value else "not set"


def _whether_set(value: Any) -> str:
    """Return whether a value is set; ranks may set different values."""
    return "set" if value else "not set"


class Setting(NamedTuple):
    """Environment variable: its parser and its help text.

    Attributes:
        field: its field of :class:`Config`.
        parse: parses the text; raises ValueError or TypeError.
        help: one line of help.
        shared: returns the text that all ranks must share; ``None`` if ranks may differ.
    """

    field: str
    parse: Callable[[str], Any]
    help: str
    shared: Callable[[Any], str] | None = None


def parse_algorithms(text: str) -> dict[str, tuple[str, dict[str, int]]]:
    """Parse ``allreduce=ring;bcast=knomial:k=4``: a choice per collective, with parameters.

    >>> parse_algorithms("allreduce=ring;bcast=native")
    {'allreduce': ('ring', {}), 'bcast': ('native', {})}
    """
    from hpccoll.algorithms.outside import read_algorithm
    from hpccoll.ir.collectives import collective_named
    chosen = {}
    for entry in filter(None, map(str.strip, text.split(";"))):
        collective, _, choice = map(str.strip, entry.partition("="))
        collective = collective_named(collective)
        name, params = read_algorithm(choice)
        chosen[collective] = check_choice(collective, name), params
    return chosen


def check_choice(collective: str, name: str) -> str:
    """Return the name if it is an algorithm of the collective, ``native``, ``auto`` or NCCL's."""
    from hpccoll.algorithms import find
    from hpccoll.ir.collectives import COLLECTIVES
    if collective not in COLLECTIVES:
        raise ArgumentError.unknown_word("collective", collective, COLLECTIVES)
    if name in QUEUED:
        if collective not in QUEUED[name]:
            raise ArgumentError("algorithm", f"{name} has no {collective}",
                                f"it supports {', '.join(QUEUED[name])}")
    elif name not in (NATIVE, AUTO):
        find(collective, name)
    return name


def _nbytes(text: str) -> int:
    from hpccoll import units
    nbytes = units.size("size", text)
    if nbytes < 1:
        raise ValueError("must be at least 1 byte")
    return nbytes


def _topology(text: str) -> Topology:
    from hpccoll.ir.topology import Topology
    return Topology.parse(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (number := float(text)) < float("inf"):
            return number
    raise ValueError("must be a positive number of seconds")


def check_timeout(value: object) -> float:
    """Return a timeout in seconds; infinity for ``"off"``.

    >>> check_timeout("off"), check_timeout(90)
    (inf, 90.0)
    """
    try:
        seconds = NO_TIMEOUT if value == OFF else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = 0.0
    if not seconds > 0 or isinstance(value, bool):
        raise ArgumentError("timeout", f"must be seconds above 0, or '{OFF}'; got {value!r}")
    return seconds


def _yes_or_no(text: str) -> bool:
    answers = {"yes": True, "no": False, "1": True, "0": False}
    if text.lower() not in answers:
        raise ValueError("must be 'yes' or 'no'")
    return answers[text.lower()]


def _tuning(text: str) -> str:
    if text not in (OFF, ONLINE, PROBE) and os.sep not in text and not text.endswith(".json"):
        raise ValueError(f"must be '{ONLINE}', '{PROBE}', '{OFF}', or a path, which contains a "
                         f"{os.sep} or ends with .json")
    return text


def check_determinism(text: str) -> str:
    """Return the text if it is one of :data:`DETERMINISM`."""
    if text not in DETERMINISM:
        raise ArgumentError.unknown_word("determinism", text, DETERMINISM)
    return text


def check_progress(text: str) -> str:
    """Return the text if it is one of :data:`PROGRESS`."""
    if text not in PROGRESS:
        raise ArgumentError.unknown_word("progress", text, PROGRESS)
    return text


def _executor(text: str) -> str:
    if text not in EXECUTORS:
        raise ValueError(f"must be '{COMPILED}' or '{INTERPRETED}'")
    return text


def check_contract(text: str) -> str:
    """Return the text if it is one of :data:`CONTRACT`."""
    if text not in CONTRACT:
        raise ArgumentError.unknown_word("contract", text, CONTRACT)
    return text


def _checks(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in CHECKS:
            raise ArgumentError.unknown_word("check", name, CHECKS)
    return names


def _log(text: str) -> str:
    if text.lower() not in LOG:
        raise ValueError(f"must be '{INFO}' or '{DEBUG}'")
    return text.lower()


def _levels(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in LEVELS]
    if unknown or NODE not in names:
        raise ValueError(f"{unknown[0]!r} is no level, choose from {', '.join(LEVELS)}" if unknown
                         else f"'{NODE}' is missing")
    return names


def _folder(text: str) -> str:
    if os.path.exists(text) and not os.path.isdir(text):
        raise ValueError("is a file, not a folder")
    return text


def _file(text: str) -> str:
    # Only the rank of each node that reads the file checks that it exists.
    if text.endswith(os.sep):
        raise ValueError("is a directory, not a file")
    return text


#: Every environment variable.
SETTINGS: dict[str, Setting] = {
    "HPCCOLL_ALGORITHM": Setting(
        "algorithm", parse_algorithms,
        "algorithm per collective, e.g. 'allreduce=ring;bcast=knomial:k=4;reduce=native'", _text),
    "HPCCOLL_SEGMENT_BYTES": Setting(
        "segment_bytes", _nbytes,
        "bytes of a block per message, e.g. '256K'; default 256K, 1M for blocks above 2M; with "
        "more ranks than processors on a node 512K, 4M for blocks above 1M",
        _text),
    "HPCCOLL_TOPOLOGY": Setting(
        "topology", _topology,
        "layout for hierarchical algorithms, e.g. '2x4' or '2x2@0,2,1,3'; its ranks must match the "
        "communicator", _text),
    "HPCCOLL_TIMEOUT": Setting(
        "timeout", check_timeout,
        "seconds without progress until a collective fails; 'off' reports a missing rank and "
        "continues to wait while it lives; default 'off'"),
    "HPCCOLL_REPORT": Setting(
        "report", _seconds,
        "seconds without progress between two reports of the missing ranks; default 30"),
    "HPCCOLL_SHARED_MEMORY": Setting(
        "shared_memory", _yes_or_no,
        "'no' sends messages between ranks of a node through MPI; default 'yes'", _text),
    # The first collective compares it, when rank 0 reads the table.
    "HPCCOLL_TUNING": Setting(
        "tuning", _tuning,
        "table of measured times, e.g. './tuning.json'; 'online' measures every kind of call in "
        "the job, 'probe' a few for some seconds if the default table has no entry for the "
        "machine, 'off' disables tuning; default $XDG_CACHE_HOME/hpccoll/tuning.json if it exists"),
    "HPCCOLL_DETERMINISM": Setting(
        "determinism", check_determinism,
        "bits of rounded results are independent of the run ('run'), also of the message size "
        "('size'), of the nodes ('layout'), of the number of ranks ('any-p'); default 'none'",
        _text),
    "HPCCOLL_PROGRESS": Setting(
        "progress", check_progress,
        "progress of nonblocking and persistent collectives: 'thread' uses a background thread, "
        "'calls' only Test and Wait; default 'thread'", _text),
    "HPCCOLL_LEVELS": Setting(
        "levels", _levels,
        f"machine levels in the discovered layout, from {','.join(LEVELS)}; default "
        f"'{SWITCH},{NODE}'", _text),
    "HPCCOLL_NETWORK": Setting(
        "network", _file,
        "file with the switches above every node, like Slurm's topology.conf; default: Slurm's "
        "variables", _text),
    "HPCCOLL_TRACE": Setting(
        "trace", _folder,
        "folder for timelines of collectives and gradient exchanges, and for flight records of "
        "failed calls; 'hpccoll trace' reads it; default none",
        _whether_set),
    "HPCCOLL_TRACE_PHASES": Setting(
        "trace_phases", _yes_or_no,
        "'yes' adds the phases of blocking hpccoll calls to the timelines of HPCCOLL_TRACE: send, "
        "wait and reduce; default 'no'"),
    "HPCCOLL_EXECUTOR": Setting(
        "executor", _executor,
        "executor of small collectives inside a node: 'compiled', or 'python', its reference; "
        "default 'compiled' if it was built"),
    "HPCCOLL_HUGE_PAGES": Setting(
        "huge_pages", _yes_or_no,
        "'yes' moves large PyTorch tensors that are sent repeatedly to huge pages, which other "
        "ranks read faster; default 'yes'"),
    "HPCCOLL_CONTRACT": Setting(
        "contract", check_contract,
        "comparison of calls between ranks: 'tags' by the tags of their messages, 'always' by an "
        "exchange before each call, 'off' disables it; default 'tags'",
        _text),
    "HPCCOLL_CHECKSUMS": Setting(
        "checksums", _yes_or_no,
        "'yes' sends a checksum and a sequence number with every hpccoll message, and reports "
        "sender, receiver and round of a corrupt, lost or duplicate message; default 'no'", _text),
    "HPCCOLL_CHECK": Setting(
        "check", _checks,
        "data checks of blocking calls, e.g. 'nan,results': NaN and infinity in inputs of "
        "reductions ('nan'), bits of results that differ between ranks ('results'); default "
        "none", _text),
    "HPCCOLL_LOG": Setting(
        "log", _log,
        "log on standard error: 'info' prints the algorithm of each kind of call and the reason, "
        "'debug' also all plans and all ranks; default none"),
    "HPCCOLL_PROFILE": Setting(
        "profile", _yes_or_no,
        "'yes' counts and times every collective for comm.stats(), like 'hpccoll run --profile'; "
        "default 'no'", _whether_set),
}


#: Settings that ``Comm`` accepts as arguments, with their parsers.
OPTIONS: dict[str, Callable[[Any], Any]] = {
    "checksums": bool, "contract": check_contract, "determinism": check_determinism,
    "progress": check_progress, "timeout": check_timeout, "tuning": str}


def load(environ: Mapping[str, str] = os.environ) -> Config:
    """Read the configuration from the environment.

    Raises:
        ArgumentError: a malformed value; names the variable.
    """
    # Cached: reading all variables takes as long as a small collective. ``os.environ`` calls Python
    # for each of its names, of which some sites have hundreds; the mapping behind it does not.
    names = ([os.fsdecode(name) for name in getattr(os.environ, "_data", os.environb)
              if name.startswith(b"HPCCOLL_")] if environ is os.environ else
             [name for name in environ if name.startswith("HPCCOLL_")])
    return _load(tuple((name, environ[name]) for name in names))


@lru_cache(maxsize=8)
def _load(variables: tuple[tuple[str, str], ...]) -> Config:
    values, texts = {}, dict(variables)
    for variable, setting in SETTINGS.items():
        text = texts.get(variable, "").strip()
        if not text:
            continue
        try:
            values[setting.field] = setting.parse(text)
        except ArgumentError as error:  # which has the value
            raise ArgumentError(variable, str(error).removeprefix(f"{error.argument}: ")) from None
        except ValueError as error:
            raise ArgumentError(variable, f"{error}; got {text!r}") from None
    unknown = [name for name in texts if name not in SETTINGS]
    if unknown:
        raise ArgumentError.unknown_word(unknown[0], unknown[0], SETTINGS, "no such setting")
    return Config(**values)


def common_values(config: Config) -> dict[str, str]:
    """Return the values that all ranks of a communicator must share, as text, by variable."""
    return {variable: setting.shared(getattr(config, setting.field))
            for variable, setting in SETTINGS.items() if setting.shared is not None}
