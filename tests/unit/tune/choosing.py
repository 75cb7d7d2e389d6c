"""Choices of resolved calls, as a communicator makes them: in the words of these tests."""

from __future__ import annotations

from hpccoll.calls.facts import facts_of
from hpccoll.tune import choose as choosing
from hpccoll.tune.choose import Conditions
from hpccoll.tune.describe import describe as describe_under


def choose(call, size, wish=None, from_environment=True, tuned=None, determinism="none",
           place=None, **more):
    """The choice for a call; where the place is unknown, as if no rule held there."""
    facts = facts_of(call)
    conditions = Conditions(size, wish, from_environment, tuned, determinism, **more)
    return (choosing.choose(facts, conditions, place)
            or choosing.fallback(facts, conditions))


def asks_for_the_place(call, size):
    """Tell whether the choice needs to know where the job runs."""
    return choosing.choose(facts_of(call), Conditions(size)) is None


def objection(choice, call, size):
    return choosing.objection(choice, facts_of(call), size)


def native_below(collective, size, wish, tuned, determinism, place):
    return choosing.native_below(
        collective, Conditions(size, wish, tuned=tuned, determinism=determinism), place)


def describe(collective, nbytes, size, wish, from_environment, topology, tuned=None,
             determinism="none", place=None):
    return describe_under(collective, nbytes, Conditions(
        size, wish, from_environment, tuned, determinism), topology, place)
