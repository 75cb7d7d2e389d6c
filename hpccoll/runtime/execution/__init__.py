"""Execution of plans: by the interpreter ``executor``, or in machine code by ``compiled``.

``slow_path`` handles waiting compiled plans, and ``remote`` their messages to other nodes. A new
kind of executor replaces ``executor``.
"""
