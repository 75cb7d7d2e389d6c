"""Schedules as plain data."""

import json

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.explain import as_json
from hpccoll.ir.schedule import Span, Step
from support.folded import folded

FLAT = [(c, a) for c, table in ALGORITHMS.items() for a, e in table.items() if not e.hierarchical]


@folded("collective, algorithm", FLAT)
def test_json_reads_back_unchanged_and_complete(collective, algorithm):
    made = schedule(collective, algorithm, 5, root=3)
    data = as_json(made)
    assert json.loads(json.dumps(data)) == data
    assert list(data) == ["format", "title", "collective", "algorithm", "size", "root", "nblocks",
                          "uniform", "params", "topology", "digest", "wanted", "facts",
                          "messages", "programs"]
    for rank, program in enumerate(data["programs"]):
        spans = {s["kind"]: s for steps in program["rounds"] for s in steps}
        assert all(list(s) == ["kind", "peer", "side", "spans", "source"] for s in spans.values())
        rounds = tuple(tuple(Step(s["kind"], s["peer"], tuple(Span(*x) for x in s["spans"]),
                                  tuple(Span(*x) for x in s["source"]), s["side"]) for s in steps)
                       for steps in program["rounds"])
        assert (rounds, program["scratch"]) == (
            made.program(rank).rounds, list(made.program(rank).scratch))
