"""The page docs/algorithms.md, made from the table of algorithms.

    python docs/algorithms_page.py > docs/algorithms.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hpccoll.algorithms import ALGORITHMS, Algorithm
from hpccoll.algorithms.formula import LEGEND, Formula, Relation, number, p
from hpccoll.algorithms.table import reproducible
from hpccoll.explain.text import first_line
from hpccoll.ir.collectives import COLLECTIVES

#: What a user has, and the algorithms to look at first.
CHOOSER = (
    ("nothing measured yet", "leave it to `auto`, or run `hpccoll tune` on the machine"),
    ("small messages, one node or a flat network", "few rounds: `recursive_doubling`, "
     "`recursive_multiplying`, `binomial`, `knomial`, `bruck`, `dissemination`"),
    ("large messages, one node or a flat network", "few bytes: `ring`, `rabenseifner`, "
     "`scatter_allgather`, `pairwise`"),
    ("large messages, and no power of two of ranks", "few bytes in few rounds: `circulant`, "
     "`pat`, `swing`"),
    ("few ranks in the shared memory of a node, or more ranks than cores", "the fewest rounds: "
     "`linear`, `allpairs`"),
    ("many nodes, small messages", "one crossing for each node: `leader`, `lane_census`, "
     "`lane_bruck`"),
    ("many nodes, large messages", "all ranks of a node send: `rails`, `crossing`, "
     "`multi_leader`, `two_phase`"),
    ("long vectors from or to one root", "pipelines: `chain`, `double_tree`, `circulant`"),
    ("an operator that does not commute", "those with *yes* under *order*"),
    ("a promise of the same bits (`determinism`)", "{reproducible}"))

#: What the steps of a round mean, for people who read or write a schedule.
SEMANTICS = (
    "## How to read a schedule", "",
    "`hpccoll explain allreduce ring --size 4` and `print(schedule)` show each rank's rounds. "
    "In a round,", "",
    "1. all sends and receives are posted together, wherever they stand; a send carries what its "
    "slots held when the",
    "   round began;",
    "2. the rank waits until all of them are complete; a send may wait for its receive; messages "
    "between two ranks",
    "   arrive in the order in which they were sent;",
    "3. then the receives that reduce are carried out in the order written, and after them the "
    "copies and reductions.", "",
    "`(arriving op mine)` and `(mine op arriving)` say on which side the arriving operand stands.",
    "", "| in one round | |", "|---|---|",
    "| a slot is sent twice, or in several messages | allowed |",
    "| a slot is sent, and reduced into | allowed: the send carries it as it was |",
    "| several receives reduce into a slot | allowed: in the order written |",
    "| a slot is received, and a receive written later reduces into it | allowed: it adds to what "
    "has arrived |",
    "| a slot is received, and sent | refused; receive into another slot |",
    "| a slot is received twice, or after a receive that reduces into it | refused |",
    "| a receive names a slot twice | refused |",
    "| a copy or a reduction whose sides overlap, but are not the same | refused |", "",
    "Both ends of a message, and both sides of a copy or reduction, are slots of the same blocks, "
    "unless the algorithm is",
    "for blocks of one size. In place, slots of `in` and `out` are the same memory. Proofs check "
    "all this by slot, before",
    "anything is laid out in memory: so it does not depend on which blocks are empty or adjoin.")


def as_markdown() -> str:
    """The page docs/algorithms.md."""
    lines = [
        "# Algorithms", "",
        "<!-- Made by: python docs/algorithms_page.py > docs/algorithms.md -->", "",
        "Every algorithm of the library. `hpccoll verify` proves them all, for any numbers of "
        "ranks: see [design](design.md).",
        "Take one with `comm.using(bcast=\"knomial:k=8\")` or "
        "`HPCCOLL_ALGORITHM=\"bcast=knomial:k=8\"`;",
        "`hpccoll explain bcast knomial --size 9` shows who sends what to whom.", "",
        "## Which one?", "", "| you have | look at |", "|---|---|"]
    promised = dict.fromkeys(f"`{name}`" for base in ALGORITHMS for name in reproducible(base))
    lines += [f"| {have} | {take.replace('{reproducible}', ', '.join(promised))} |"
              for have, take in CHOOSER]
    lines += [
        "", "## How to read the tables", "",
        "*Rounds* is the longest chain of messages that wait for each other. *Sent* is the most "
        "that one rank sends,",
        "as a multiple of its vector, or of all its blocks together. Every proof confirms both, "
        "for two ranks and more;",
        "where ≤ or ≥ stands, it confirms an exact number that these are bounds of. An empty cell "
        "has no closed form.",
        "*Order*: keeps rank order, so it serves operators that do not commute.", "",
        "| symbol | meaning |", "|---|---|", *(f"| {symbol} | {meaning} |"
                                               for symbol, meaning in LEGEND.items()), "",
        "The form of a *hierarchical* algorithm is for equal groups; Σ sums over the levels "
        "inside the outermost, or over d.", "", *SEMANTICS, ""]
    for collective, table in ALGORITHMS.items():
        reduces = COLLECTIVES[collective].reduces
        sends = COLLECTIVES[collective].payload != "none"
        head = ["name", "what it does", "rounds", *["sent"] * sends, *["order"] * reduces, "notes"]
        lines += [f"## {collective}", "", *_rows([head, ["---"] * len(head)])]
        lines += _rows(_row(collective, name, entry, reduces) for name, entry in table.items())
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _rows(rows: Sequence[list[str]] | Iterator[list[str]]) -> list[str]:
    return [("|" + "|".join(row) + "|") if row[0] == "---" else f"| {' | '.join(row)} |"
            for row in rows]


def _row(collective: str, name: str, entry: Algorithm, reduces: bool) -> list[str]:
    path = "../" + entry.build.__module__.replace(".", "/") + ".py"
    cells = [f"[`{name}`]({path})", first_line(entry).replace("``", "`"),
             _code(_text(entry.rounds))]
    payload = COLLECTIVES[collective].payload
    if payload != "none":
        cells.append(_code(_share(entry.sent, entry.blocks if payload == "vector" else p)))
    if reduces:
        cells.append("yes" if entry.rank_order else "")
    return [*cells, "; ".join(_notes(entry))]


def _text(form: Callable[..., int | None] | None) -> str:
    return str(form) if isinstance(form, (Formula, Relation)) else ""


def _share(sent: Callable[..., int | None] | None,
           blocks: Callable[..., int | None] | int) -> str:
    """The blocks sent, as a part of all blocks."""
    relation = f"{sent.relation} " if isinstance(sent, Relation) and sent.relation != "=" else ""
    stated, parts = (form.statement if isinstance(form, Relation) else form
                     for form in (sent, blocks))
    if not isinstance(stated, Formula) or not isinstance(parts, Formula):
        return ""
    if stated == parts:
        return f"{relation}1"
    return f"{relation}{stated if parts == number(1) else stated / parts}"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _notes(entry: Algorithm) -> Iterator[str]:
    for key, value in entry.params.items():
        yield f"`{key}={value}`"
    if entry.exact_only:
        yield "exact operations only"
    if entry.uniform:
        yield "equal blocks only"
    if entry.hierarchical:
        yield "hierarchical"
    if entry.reproducible:
        yield "reproducible"


if __name__ == "__main__":
    print(as_markdown(), end="")
