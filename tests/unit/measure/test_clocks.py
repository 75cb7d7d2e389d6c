"""Clocks of nodes, compared by messages."""

import threading

from hpccoll.measure import clocks
from support.threads import run_ranks

ask = clocks._ask


def test_one_rank_of_every_other_node_asks_and_all_its_ranks_know(monkeypatch):
    asked = []
    monkeypatch.setattr(clocks, "clock_name",
                        lambda: "aabb"[int(threading.current_thread().name.split()[-1])])
    monkeypatch.setattr(clocks, "_ask", lambda comm, stamp: asked.append(ask(comm, stamp)) or 7.0)
    assert run_ranks(4, clocks.seconds_ahead) == [0.0, 0.0, 7.0, 7.0]
    [found] = asked
    assert abs(found) < 1  # threads of one process read one clock
