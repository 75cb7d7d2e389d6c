"""Bare environments: a copy of the checkout, a shell of its own, the commands of a page."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from doc.pages import FILE, blocks, commands
from launch import ROOT

#: What a network and a package index need; nothing else comes from this environment.
KEPT = re.compile(r"PIP_|SSL_CERT|REQUESTS_CA|(?i:https?_proxy|no_proxy)$|LANG$")


def copy_checkout(folder: Path) -> Path:
    """Copy what git knows here to ``folder``, as a clone would."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def run_shell(folder: Path, path: str, *lines: str, **variables: str) -> tuple[int, str]:
    """Run lines in one shell that ends at the first error; return its status and output."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if KEPT.match(name)}
    done = subprocess.run(["bash", "-c", "\n".join(["set -e", *lines])], cwd=folder,
                          env={**kept, "PATH": path, "HOME": str(home), **variables},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def pasted(text: str) -> Iterator[str]:
    """Return a page's commands, and files, as lines of one shell."""
    for block in blocks(text):
        if block.mark.startswith(FILE):
            name = block.mark.removeprefix(FILE)
            yield from (f"cat > {name} <<'END OF FILE'", block.code + "END OF FILE")
        elif block.language == "console":
            for command in commands(block.code):
                yield f"echo {shlex.quote(f'$ {command}')}"
                yield command
