"""Manual pages of the command line, made from the program: ``make man``.

Or ``python docs/manual.py DIR``: a page for ``hpccoll`` and one for each sub-command, in
``DIR/man1``; ``man -M DIR hpccoll`` shows the first.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import hpccoll  # noqa: E402
from hpccoll.cli import COMMANDS, main  # noqa: E402


def roff(text: str) -> str:
    """Text as it is, whatever roff would make of it."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", "\\&", text, flags=re.MULTILINE)


def paragraphs(text: str) -> Iterator[str]:
    """The help of a command; what click leaves as it is stays as it is."""
    for part in inspect.cleandoc(text).partition("\f")[0].split("\n\n"):
        first, _, rest = part.partition("\n")
        yield from ((".PP", ".nf", ".RS 4", roff(rest), ".RE", ".fi") if first.strip() == "\b"
                    else (".PP", roff(" ".join(part.split()))))


def head(name: str, line: str) -> list[str]:
    """What a page begins with."""
    return [f'.TH "{name.upper()}" "1" "" "hpccoll {hpccoll.__version__}" "hpccoll"', ".SH NAME",
            f"{roff(name)} \\- {roff(line.rstrip('.'))}", ".SH SYNOPSIS"]


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    """What a command takes, in its order."""
    yield ".SH OPTIONS"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield from (".TP", f"\\fB{roff(record[0])}\\fR", roff(" ".join(record[1].split())))


def pages() -> Iterator[tuple[str, str]]:
    """Name and text of every page."""
    group = click.Context(main, info_name="hpccoll", **main.context_settings)
    names = {name: "hpccoll-" + name.replace(" ", "-") for name in COMMANDS}
    lines = [*head("hpccoll", inspect.cleandoc(main.help or "")), "\\fBhpccoll\\fR COMMAND ...",
             ".SH DESCRIPTION", *paragraphs(main.help or ""),
             ".PP", "Commands that measure run under the MPI launcher: "
             "\\fBmpiexec \\-n 4 hpccoll doctor\\fR. The others run alone.", ".SH COMMANDS"]
    for name, line in COMMANDS.items():
        lines += [".TP", f"\\fB{roff(names[name])}\\fR(1)", roff(line[1])]
    yield "hpccoll", "\n".join([*lines, *options(main, group), ""])
    for name in COMMANDS:
        command = main.get_command(group, name)
        if command is None:
            continue
        context = click.Context(command, info_name=name, parent=group, **command.context_settings)
        usage = " ".join(command.collect_usage_pieces(context))
        yield names[name], "\n".join([
            *head(names[name], COMMANDS[name][1]), f"\\fBhpccoll {roff(name)}\\fR {roff(usage)}",
            ".SH DESCRIPTION", *paragraphs(command.help or ""), *options(command, context),
            ".SH SEE ALSO", "\\fBhpccoll\\fR(1)", ""])


def write(folder: Path) -> list[Path]:
    """Write every page below a folder; return their paths."""
    written = []
    for name, text in pages():
        path = folder / "man1" / f"{name}.1"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    for each in write(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "man")):
        print(each)
