"""Summary of a benchmark: a sentence per collective, and its reliability.

Ratios are those of medians over iterations, as in the table and the plot. A size is *faster* or
*slower* if the median ratio and all middle parts of the run agree. It is *too noisy* if these
differ by much, or if a larger message took a small part of the time. Sizes are grouped by similar
ratios, without a mean over different ones; the lowest and the highest are reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import exp, log
from typing import Any, NamedTuple

from hpccoll.config import AUTO, NATIVE
from hpccoll.machine.identity import library_name
from hpccoll.measure.noise import Spread, absurd, implausible_ratios, spread
from hpccoll.measure.results import Result
from hpccoll.units import count_text, rate_text, size_text

#: Ratios up to this factor from 1 are equal.
EQUAL = 0.05
#: Permitted factor between two times of the same code; more is noise.
LUCK = 0.2
#: Share of sizes with noisy ratios from which the text reports noise.
ROUGH = 0.25
#: With more ranges of sizes than this, a sentence has their number, not their names.
STRETCHES = 4
#: Ratios that differ by less are reported as their mean ...
ALIKE = 1.15
#: ... and small and large sizes are separate if that explains this part of their difference.
EXPLAINED = 0.5
FASTER, SAME, SLOWER, NOISY = "faster", "equal", "slower", "noisy"


class Comparison(NamedTuple):
    """One candidate compared with native at one size.

    Attributes:
        native: seconds of native.
        late: native time divided by that of a larger size, if the ratio shows noise; else 0.
        itself: True if the candidate forwards the call to native: it is never faster, and slower
            only by the overhead of forwarding.
    """

    nbytes: int
    ratio: float
    spread: Spread
    absurd: bool = False
    native: float = 0.0
    late: float = 0.0
    itself: bool = False

    @property
    def kind(self) -> str:
        """Return the class of the ratio."""
        low, high = self.spread
        unsure = self.spread.noisy and low <= 1 + EQUAL and high >= 1 - EQUAL
        if self.absurd or self.late or unsure:
            return NOISY
        faster = self.ratio > 1 + EQUAL and low > 1
        slower = self.ratio < 1 - EQUAL and high < 1
        if not faster and not slower:
            return SAME
        if self.itself and self.spread.noisy:
            return NOISY
        if self.itself and max(self.ratio, 1 / self.ratio) <= 1 + LUCK:
            return SAME
        return SLOWER if slower else NOISY if self.itself else FASTER

    @property
    def handed_on(self) -> float:
        """Return the overhead factor if it forwards the call to native and is equal."""
        handed = self.itself and self.kind == SAME and self.ratio < 1 - EQUAL
        return 1 / self.ratio if handed else 1.0


def judged_candidate(group: Sequence[Result]) -> Result | None:
    """Return the judged candidate: auto, or else the fastest one that is not native."""
    others = [r for r in group if r.candidate != NATIVE and not r.failures]
    auto = next((r for r in others if r.candidate == AUTO), None)
    return auto or min(others, key=lambda r: r.median, default=None)


def compare_native(group: Sequence[Result], one: Result | None) -> Comparison | None:
    """Return the comparison of a candidate with native; ``None`` if one of them is missing."""
    native = next((r for r in group if r.candidate == NATIVE), None)
    if native is None or one is None or not one.median or not native.median:
        return None
    return Comparison(one.nbytes, native.median / one.median, spread(native.seconds, one.seconds),
                      absurd([native, one]) > 0, native.median,
                      itself=one.candidate == AUTO and one.serves == NATIVE)


def sentences(groups: Sequence[Sequence[Result]], environment: Mapping[str, Any]) -> list[str]:
    """Return the summary: a sentence per collective, and remarks."""
    if environment["ranks"] == 1:
        return ["one rank sends no messages: these times compare the start of calls only"]
    by_name: dict[str, list[Sequence[Result]]] = {}
    for group in groups:
        if group:
            by_name.setdefault(group[0].collective, []).append(group)
    sentences, every = [], []
    for name, mine in by_name.items():
        chosen = [judged_candidate(group) for group in mine]
        pairs = [pair for group, one in zip(mine, chosen)
                 if (pair := compare_native(group, one)) is not None]
        late = implausible_ratios([(pair.nbytes, pair.native) for pair in pairs])
        pairs = [pair._replace(late=times) for pair, times in zip(pairs, late)]
        every += pairs
        if pairs:
            who = AUTO if any(r and r.candidate == AUTO for r in chosen) else "the best candidate"
            sentences.append(f"{name}: {sentence(pairs, who, library_of(environment))}")
    sentences += handed_on(every, library_of(environment)) + noise(every)
    sharing = oversubscription_note(environment)
    return sentences + ([sharing] if sharing else [])


def check_bandwidth(groups: Sequence[Sequence[Result]], least: float) -> Iterator[tuple[str, bool]]:
    """Yield a sentence for each collective, and whether it reached a bus bandwidth at some size.

    Args:
        least: bytes per second.
    """
    best: dict[str, Result] = {}
    for one in filter(None, map(judged_candidate, groups)):
        known = best.setdefault(one.collective, one)
        if one.bus_bandwidth(one.median) > known.bus_bandwidth(known.median):
            best[one.collective] = one
    for name, one in best.items():
        if one.nbytes:  # barrier has no bandwidth
            rate = one.bus_bandwidth(one.median)
            yield (f"{name}: {rate_text(rate)} at {size_text(one.nbytes)}, at least "
                   f"{rate_text(least)} expected: {'pass' if rate >= least else 'FAIL'}",
                   rate >= least)


def split_by_size(group: Sequence[Comparison]) -> list[Sequence[Comparison]]:
    """Return small and large sizes of one kind if their ratios differ; else one group."""
    def differ(some: Sequence[Comparison]) -> float:
        logs = [log(pair.ratio) for pair in some]
        return sum((value - sum(logs) / len(logs)) ** 2 for value in logs)

    low, high = _bounds(group)
    if group[0].kind not in (FASTER, SLOWER) or high < ALIKE * low:
        return [group]
    cuts = [[group[:n], group[n:]] for n in range(1, len(group))]
    best = min(cuts, key=lambda cut: sum(map(differ, cut)), default=[group])
    return best if sum(map(differ, best)) < (1 - EXPLAINED) * differ(group) else [group]


def sentence(pairs: Sequence[Comparison], who: str, library: str) -> str:
    """Return ``auto was 1.6x as fast as MPICH at 1 MiB and above, equal up to 4 KiB``."""
    order = (FASTER, SAME, SLOWER, NOISY)
    whole = [(kind, list(group)) for kind, group in groupby(pairs, lambda pair: pair.kind)]
    cut = [(kind, part) for kind, group in whole for part in split_by_size(group)]
    stretches = cut if len(cut) <= STRETCHES else whole
    parts = [(kind, group, _where(pairs, group)) for kind, group in stretches]
    if len(parts) > STRETCHES:
        of_kind = {kind: [pair for pair in pairs if pair.kind == kind] for kind in order}
        parts = [(kind, group, f"at {len(group)} of {len(pairs)} sizes")
                 for kind, group in of_kind.items() if group]
    parts.sort(key=lambda part: order.index(part[0]))
    words: list[str] = []
    named, before = False, ("", "")
    for kind, group, place in parts:
        if kind in (FASTER, SLOWER):
            text = f"{_times(group)} as fast" + f" as {library}" * (not named)
            named = True
        elif kind == SAME:
            text = "equal" + f" to {library}" * (not named)
            named = True
        else:
            text = "too noisy to compare"
        left = f", where it used {library}" if kind != NOISY and all(
            pair.itself for pair in group) else ""
        if (kind, left) == before and kind in (SAME, NOISY):
            words[-1] = words[-1].removesuffix(left) + f" and {place}{left}"
        else:
            words.append(f"{text} {place}".rstrip() + left)
        before = kind, left
    return f"{who} was {', '.join(words)}"


def handed_on(pairs: Sequence[Comparison], library: str) -> list[str]:
    """Return the overhead of equal calls that were forwarded to the library."""
    longer = [pair for pair in pairs if pair.handed_on > 1]
    if not longer:
        return []
    most = max(pair.handed_on for pair in longer)
    return [f"{count_text(len(longer), 'size')} that auto passed to {library} took up to "
            f"{most:.2f}x as long: forwarding cost, or noise of the machine"]


def noise(pairs: Sequence[Comparison]) -> list[str]:
    """Return a remark about unreliable numbers and its remedy, if there are any."""
    noisy = [pair for pair in pairs if pair.kind == NOISY]
    rough = noisy or [pair for pair in pairs if pair.spread.noisy]
    if not noisy and len(rough) <= ROUGH * len(pairs):
        return []
    most = max(pair.spread.high / pair.spread.low for pair in rough)
    latest = max(rough, key=lambda pair: pair.late)
    beyond = max((pair.ratio for pair in noisy if pair.absurd), default=0.0)
    sizes = f"{len(noisy or rough)} of {count_text(len(pairs), 'size')}"
    text = (f"too noisy to compare: {sizes}" if noisy else
            f"the faster one is certain, the ratio is not: {sizes}")
    # One reason is enough: the strongest.
    why = (f"{size_text(latest.nbytes)} took {latest.late:.0f} times as long as a larger size"
           if latest.late else f"{beyond:.0f}x is not plausible for an algorithm" if beyond else
           f"parts of the run differ by {most:.1f}x")
    return [f"{text} ({why}); other processes used these cores; repeat it when they are idle, or "
            "longer: --seconds 1 --sweeps 6"]


def oversubscription_note(environment: Mapping[str, Any]) -> str:
    """Return a remark if a host has more ranks than cores."""
    most = max(environment["hosts"].values(), default=0)
    if not environment.get("cores") or most <= environment["cores"]:
        return ""
    return (f"{most} ranks share {count_text(environment['cores'], 'core')}: with one core per "
            "rank, times are shorter and ratios differ")


def library_of(environment: Mapping[str, Any]) -> str:
    """Return the MPI library without its version: the name of a column."""
    return library_name(environment["mpi"]).rpartition(" ")[0] or "native"


def _bounds(group: Sequence[Comparison]) -> tuple[float, float]:
    return min(pair.ratio for pair in group), max(pair.ratio for pair in group)


def _times(group: Sequence[Comparison]) -> str:
    """Return the mean of similar ratios, or the lowest and the highest: ``1.4x to 5.9x``."""
    low, high = _bounds(group)
    if high < ALIKE * low:
        low = high = exp(sum(log(pair.ratio) for pair in group) / len(group))
    return " to ".join(dict.fromkeys(f"{ratio:.1f}x" if ratio >= 1.095 else f"{ratio:.2f}x"
                                     for ratio in (low, high)))


def _where(pairs: Sequence[Comparison], group: Sequence[Comparison]) -> str:
    """Return a short text of the sizes."""
    first, last = group[0] is pairs[0], group[-1] is pairs[-1]
    low, high = size_text(group[0].nbytes), size_text(group[-1].nbytes)
    if first and last:
        return "at all sizes" if len(pairs) > 1 else f"at {low}" * bool(group[0].nbytes)
    if len(group) == 1:
        return f"at {low}"
    return f"up to {high}" if first else f"at {low} and above" if last else f"from {low} to {high}"
