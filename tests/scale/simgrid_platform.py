"""A schedule on SimGrid: ``python3 simgrid_platform.py < case.json``, with the system's Python.

Reads rates, the ranks' nodes and every rank's rounds; builds the same platform out of SimGrid's
links, or takes SimGrid's own torus or fat tree with its routes, runs one actor a rank, and prints
the seconds until the last one is done. Needs nothing of hpccoll: SimGrid's module belongs to a
Python that may have nothing else.
"""

import json
import sys

import simgrid
from simgrid import (
    ClusterCallbacks,
    DragonflyParams,
    Engine,
    FatTreeParams,
    Link,
    LinkInRoute,
    Mailbox,
    NetZone,
    this_actor,
)

#: Plain max-min fairness: no TCP window, no return traffic, no weights by latency.
MODEL = ["network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0",
         "network/weight-S:0", "network/bandwidth-factor:1", "network/latency-factor:1"]


def platform(case):
    """One host a rank; ports, node links and latencies as links on the routes."""
    zone = NetZone.create_full_zone("zone")
    nodes, levels = case["nodes"], case["levels"]
    hosts = [zone.create_host(f"rank{r}", 1e9) for r in range(len(nodes))]

    def link(name, rate, latency=0.0):
        made = zone.create_link(name, rate)
        made.set_latency(latency)
        return LinkInRoute(made.seal())

    rate = 1 / levels[0]["beta"]
    out = [link(f"out{r}", rate) for r in range(len(nodes))]
    into = [link(f"in{r}", rate) for r in range(len(nodes))]
    latency = [link(f"latency{i}", 1e15, level["alpha"]) for i, level in enumerate(levels)]
    shared = {}
    if levels[0]["link"]:
        shared = {n: (link(f"nodeout{n}", levels[0]["link"]), link(f"nodein{n}",
                                                                   levels[0]["link"]))
                  for n in set(nodes)}
    for a, host in enumerate(hosts):
        for b, other in enumerate(hosts):
            if a == b:
                continue
            across = nodes[a] != nodes[b]
            way = [out[a], latency[0 if across else len(levels) - 1], into[b]]
            if across and shared:
                way[1:1] = [shared[nodes[a]][0], shared[nodes[b]][1]]
            zone.add_route(host.netpoint, other.netpoint, None, None, way, False)
    zone.seal()
    return hosts


def shaped(shape):
    """A host at every position of a torus, a fat tree or a dragonfly of SimGrid's own."""
    hosts = []

    def host(zone, coordinates, number):
        made = zone.create_host(f"rank{len(hosts)}", 1e9)
        hosts.append(made)
        return made.netpoint, None

    root = NetZone.create_full_zone("root")
    split = Link.SharingPolicy.SPLITDUPLEX if shape["duplex"] == "full" else (
        Link.SharingPolicy.SHARED)
    extents = shape["extents"]
    rest = (ClusterCallbacks(host, None, None), shape["rate"], shape["hop"], split)
    if shape["kind"] == "torus":
        zone = NetZone.create_torus_zone("shape", root, extents, *rest)
    elif shape["kind"] == "fat_tree":
        zone = NetZone.create_fatTree_zone("shape", root, FatTreeParams(
            len(extents), extents, shape["up"], [1] * len(extents)), *rest)
    else:
        zone = NetZone.create_dragonfly_zone("shape", root, DragonflyParams(
            (extents[0], 1), (1, 1), (extents[1], 1), extents[2]), *rest)
    zone.seal()
    root.seal()
    return hosts


def actor(rank, rounds, finished):
    """One rank: post the messages of a round, wait for all, compute."""
    for messages, seconds in rounds:
        comms, landing = [], []
        for sends, peer, nbytes in messages:
            if sends:
                comms.append(Mailbox.by_name(f"{rank}-{peer}").put_async(b"", int(nbytes)))
            else:
                # What a message is received into has to stay until it is there.
                comm, place = Mailbox.by_name(f"{peer}-{rank}").get_async()
                comms.append(comm)
                landing.append(place)
        for comm in comms:
            comm.wait()
        if seconds:
            this_actor.sleep_for(seconds)
    finished.append(Engine.clock)


def main():
    """Run one case."""
    case = json.load(sys.stdin)
    engine = Engine(["simgrid", *(f"--cfg={setting}" for setting in MODEL)])
    hosts = shaped(case["shape"]) if case.get("shape") else platform(case)
    finished = []
    for rank, host in enumerate(hosts):
        simgrid.Actor.create(f"rank{rank}", host, actor, rank, case["rounds"][rank], finished)
    engine.run()
    print(json.dumps({"seconds": max(finished), "done": len(finished),
                      "version": simgrid.simgrid_version}))


if __name__ == "__main__":
    main()
