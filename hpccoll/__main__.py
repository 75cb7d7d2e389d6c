"""The command line, as ``python -m hpccoll``; the installed command ``hpccoll`` calls it too."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say what it takes to have one."""
    try:
        from hpccoll.cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"hpccoll: the command line requires {error.name}; run pip install 'hpccoll[cli]'")
    command(prog_name="hpccoll")


if __name__ == "__main__":
    main()
