"""A schedule as plain data, for other programs."""

from __future__ import annotations

from hpccoll.explain.replay import facts, ranks_of, timeline
from hpccoll.explain.text import WANTS
from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.schedule import Schedule, Step


def as_json(schedule: Schedule) -> dict:
    """Explain a schedule as plain data: what :mod:`json` writes, it reads back unchanged.

    Programs are complete, so a reader can rebuild every step.
    """
    line = timeline(schedule)
    costs = facts(schedule, line)
    programs = zip(schedule.programs(), line.finish)
    return {
        "format": 1,
        "title": schedule.title,
        "collective": schedule.collective.name,
        "algorithm": schedule.algorithm,
        "size": schedule.size,
        "root": schedule.root if schedule.collective.rooted else None,
        "nblocks": schedule.nblocks,
        "uniform": schedule.uniform,
        "params": dict(schedule.params),
        "topology": str(schedule.topology) if schedule.topology else None,
        "digest": schedule.digest,
        "wanted": WANTS[schedule.collective.name].format(root=schedule.root),
        "facts": {**costs._asdict(), "proof": costs.proof and {
            **costs.proof._asdict(), "network": list(costs.proof.network)}},
        "messages": [{"round": m.round, "from": m.sender, "to": m.receiver, "reduce": m.side,
                      "blocks": [v and v.block for v in m.values],
                      "contributions": [v and ranks_of(v.ranks) for v in m.values]}
                     for m in line.messages],
        **({"operations": [{"round": o.round, "sources": list(o.network.senders),
                            "sinks": list(o.network.receivers),
                            "blocks": [v and v.block for v in o.values],
                            "contributions": [v and ranks_of(v.ranks) for v in o.values]}
                           for o in line.operations]} if line.operations else {}),
        "programs": [{"rank": rank, "scratch": list(program.scratch),
                      "rounds": [[_step(s) for s in steps] for steps in program.rounds],
                      "finish": finish,
                      **({"after": list(map(list, program.after))} if program.after else {})}
                     for rank, (program, finish) in enumerate(programs)],
    }


def _step(step: Step) -> dict:
    peer = step.peer if not isinstance(step.peer, InNetwork) else {
        "sources": list(step.peer.senders), "sinks": list(step.peer.receivers)}
    return {"kind": step.kind, "peer": peer, "side": step.side,
            "spans": [list(s) for s in step.spans], "source": [list(s) for s in step.source]}
