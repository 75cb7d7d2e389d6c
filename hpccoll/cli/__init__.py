"""Command line: one module per sub-command, imported only when the command runs.

So ``hpccoll verify`` needs no MPI, and ``hpccoll --help`` imports nothing. An ``HpccollError``
becomes one line on standard error and exit status 2. Ctrl-C becomes one line and status 130, after
partial results.

A new sub-command is a module with a ``command``, and a line in ``COMMANDS`` of ``commands``. A
command for many ranks is a ``RankCommand``: it calls ``require_mpi`` before it imports MPI,
``agree`` for steps that can fail on one rank, and ``abort`` for a failure of one rank. The work
itself is in ``tools``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpccoll.cli.commands import COMMANDS as COMMANDS
    from hpccoll.cli.commands import Commands as Commands
    from hpccoll.cli.commands import main as main
else:
    # A program under ``hpccoll run`` needs no command line, whose modules take 20 ms.
    def __getattr__(name):
        if name not in ("COMMANDS", "Commands", "main"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from hpccoll.cli import commands
        return getattr(commands, name)
