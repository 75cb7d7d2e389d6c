"""Planning: turns a call and a choice into an execution.

``planner`` lowers the schedule's program to a ``plan``, ``description`` compares the plans of the
ranks, and ``binding`` binds a plan to memory.
"""
