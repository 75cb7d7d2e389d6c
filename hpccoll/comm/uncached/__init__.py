"""Calls that no cache has: how they are resolved, chosen and run.

    conditions    the resolved call, the user's choices
    steps         the choice, the guards of native methods
    blocking, nonblocking, persistent   one form each; the first has the entry from the methods

The first such call of a process loads these modules, and with them the rooms below.
"""
