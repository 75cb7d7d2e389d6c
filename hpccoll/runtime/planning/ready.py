"""Steps before a plan is made: counts that only the root has, and proofs of users' algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.algorithms import schedule as make_schedule
from hpccoll.calls.call import Call
from hpccoll.calls.facts import facts_of
from hpccoll.errors import ArgumentError
from hpccoll.ir.extents import SlotLayout
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.wellformed import keys_of
from hpccoll.runtime.context import Context
from hpccoll.runtime.planning import plan as plans
from hpccoll.runtime.planning.capabilities import check
from hpccoll.runtime.planning.choice import Choice
from hpccoll.runtime.planning.planner import in_any_order, key_of, parts_of, plan_for


def ready_call(context: Context, call: Call, choice: Choice) -> Call:
    """Return the call with all counts that its algorithm needs; prove a user's algorithm.

    Collective if only the root has the counts.

    Raises:
        ProofError, ArgumentError, CapabilityError: the algorithm cannot run the call.
    """
    entry = choice.entry(call.collective)
    if call.learn is not None and not (entry and entry.own_blocks):
        call = call.learn(context.comm.bcast(call.key[0], call.root))
    prove_brought(context, call, choice)
    return call


def prove_brought(context: Context, call: Call, choice: Choice) -> None:
    """Prove a user's algorithm before its plan is made; other choices need no proof."""
    if choice.is_brought(call.collective) and context.plans.get(key_of(call, choice)) is None:
        schedule, layout, _, segment = parts_of(context, call, choice)
        check(schedule, prove(schedule, call, layout, segment), context.endpoint.offers)


def proved_plan_for(context: Context, call: Call, choice: Choice) -> plans.Plan:
    """Return the plan of a call that has all counts, after the proof of its algorithm."""
    prove_brought(context, call, choice)
    return plan_for(context, call, choice)


def check_choice(call: Call, choice: Choice, rank: int, size: int) -> None:
    """Raise the errors of a choice that do not depend on the nodes of the ranks.

    Raises:
        ArgumentError: a parameter is unknown or invalid.
        ProofError: an algorithm of the user does not implement the collective.
    """
    entry, schedule = choice.entry(call.collective), choice.algorithm
    if choice.is_native or choice.is_queued or entry is not None and entry.hierarchical:
        return
    if not isinstance(schedule, Schedule):
        schedule = make_schedule(call.collective, schedule, size, root=call.root, topology=None,
                                 **choice.params)
    if choice.is_brought(call.collective):
        prove(schedule, call)
    else:
        schedule.program(rank)


def prove(schedule: Schedule, call: Call, layout: SlotLayout | None = None, segment: int = 0
          ) -> Sequence[str]:
    """Prove a schedule of the user, also for the sizes in its ``layout``.

    Returns:
        The capabilities that the network must have.

    Raises:
        ProofError: it does not implement the collective.
        ArgumentError: its results could differ between ranks.
    """
    from hpccoll.proof.cases import similar_sizes
    from hpccoll.proof.verifier import verify
    sizes = None
    if layout is not None and call.collective != "alltoall":  # whose sizes no rank knows
        sizes = similar_sizes([layout.scratch(key) for key in range(keys_of(schedule))],
                              call.in_place,
                              segment > 0)
    proof = verify(schedule, commutative=in_any_order(call), sizes=sizes)
    if not proof.replicas_identical and not facts_of(call).exact:
        raise ArgumentError("algorithm", f"{schedule.algorithm} cannot run this {call.name}: its "
                                         "results may differ between ranks unless the operator is "
                                         "exact on the type",
                            "combine contributions in the same way on all ranks")
    return proof.network
