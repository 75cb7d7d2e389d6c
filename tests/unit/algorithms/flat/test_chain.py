"""Chain: the vector passes every rank once."""

from hpccoll.algorithms import schedule
from hpccoll.explain.replay import timeline


def links(made):
    return [(message.sender, message.receiver) for message in timeline(made).messages]


def test_messages_go_along_the_chain_and_back():
    forth = links(schedule("bcast", "chain", 5, root=3))
    assert forth == [(3, 4), (4, 0), (0, 1), (1, 2)]
    back = links(schedule("reduce", "chain", 5, root=3))
    assert back == [(receiver, sender) for sender, receiver in reversed(forth)]
