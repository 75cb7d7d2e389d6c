"""The command line, as ``python -m hpccoll``; the installed command ``hpccoll`` calls it too."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line, or say what it takes to have one."""
    if _is_script(sys.argv):
        from hpccoll.cli.program import run_program
        run_program("", sys.argv[2:])
        return
    try:
        from hpccoll.cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"hpccoll: the command line requires {error.name}; run pip install 'hpccoll[cli]'")
    command(prog_name="hpccoll")


def _is_script(argv: list[str]) -> bool:
    """Return True for ``hpccoll run SCRIPT`` without options, and with valid settings.

    Everything else, errors included, is for the command line.
    """
    if argv[1:2] != ["run"] or argv[2:3] in ([], ["-"]) or not os.path.exists(argv[2]):
        return False
    from hpccoll import config
    from hpccoll.errors import HpccollError
    try:
        config.load()
    except HpccollError:
        return False
    return True


if __name__ == "__main__":
    main()
