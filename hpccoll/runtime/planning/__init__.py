"""From a call and a choice to an execution.

``planner`` makes the schedule's program a ``plan``, of which ``description`` says what ranks must
agree on, and ``binding`` puts it onto memory.
"""
