"""Execution of plans: ``executor`` interprets them, ``compiled`` runs a ``compiled_plan`` in
machine code.

``attendance`` handles waiting compiled plans, and ``remote`` their messages to other nodes. A new
kind of executor replaces ``executor``.
"""
