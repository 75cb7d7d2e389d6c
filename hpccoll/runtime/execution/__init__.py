"""Execution of plans: ``executor`` interprets them, ``compiled`` runs a ``tape`` in machine code.

``attendance`` handles waiting tapes, and ``remote`` their messages to other nodes. A new kind of
executor replaces ``executor``.
"""
