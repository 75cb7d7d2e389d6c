"""What the site needs beyond mkdocs: pages for folders, for files of the repository, for commands.

The pages link as a git browser wants it: ``../hpccoll/config.py``, ``../jobs``, ``internal/``.
mkdocs knows only what lies in ``docs``. So here

* a file of the repository that a page links to becomes a page of the site, ``source/...``, and a
  folder becomes a list of its files;
* a folder without an index gets a page that lists its pages;
* pages for builders and files of the repository are left out of the search;
* ``<!-- commands -->`` becomes the help of every sub-command, made from the program;
* doctests in docstrings become blocks of code.
"""

from __future__ import annotations

import inspect
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
#: Where pages made of the repository's files go.
SOURCE = "source"
#: Folders whose pages the search leaves out.
UNSEARCHED = ("internal/", SOURCE + "/")
#: Where the sub-commands go.
COMMANDS = "<!-- commands -->"
LINK = re.compile(r"(\]\()([^()\s#]+)(#[^()\s]*)?(\))")
#: Code is shown as it is written, also what looks like a link.
CODE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".sh": "bash", ".sbatch": "bash", ".pbs": "bash", ".json": "json",
             ".yml": "yaml", ".cfg": "ini", ".toml": "toml"}
#: What Markdown would take for its own, and what it shows instead.
MARKDOWN, QUOTED = re.compile(r"([*<_[|])"), r"\\\1"
#: Names of the page of a folder.
INDEXES = ("index.md", "README.md")


def title(page: Path) -> str:
    """The first heading of a page."""
    return next((line[2:].strip() for line in page.read_text(encoding="utf-8").splitlines()
                 if line.startswith("# ")), page.stem)


def pages(folder: str) -> list[Path]:
    """The pages of a folder of ``docs``, but for its index."""
    return sorted(page for page in (DOCS / folder).glob("*.md") if page.name not in INDEXES)


def index(folder: str) -> Path | None:
    """The index of a folder, if it has one."""
    return next((page for name in INDEXES if (page := DOCS / folder / name).exists()), None)


# -- pages that are made -----------------------------------------------------------------------
def on_config(config: Any) -> Any:
    """Show doctests as code."""
    config.markdown_extensions.append(Doctests())
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every folder without one, and for what the pages link to."""
    for folder in sorted({page.parent for page in DOCS.rglob("*.md")} - {DOCS}):
        name = folder.relative_to(DOCS).as_posix()
        if folder.name != "api" and "data" not in folder.relative_to(DOCS).parts \
                and index(name) is None:
            lines = [f"# {folder.name.capitalize()}", ""]
            lines += [f"* [{title(page)}]({page.name})" for page in pages(name)]
            add(files, config, f"{name}/index.md", lines)
    for path in sorted(set(linked())):
        source = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            lines = [f"# {source}/", "", *(f"* `{child.name}`" for child in sorted(path.iterdir())
                                           if not child.name.startswith((".", "__pycache__")))]
            add(files, config, f"{SOURCE}/{source}/index.md", lines)
        elif path.suffix == ".md":
            # Its links would need a second round; the text is enough.
            add(files, config, f"{SOURCE}/{source}", ["# " + source, "", *fenced(path, "markdown")])
        else:
            add(files, config, f"{SOURCE}/{source}.md",
                ["# " + source, "", *fenced(path, LANGUAGES.get(path.suffix, "text"))])
    return files


def fenced(path: Path, language: str) -> list[str]:
    """The text of a file as a block of code."""
    return [f"````{language}", *path.read_text(encoding="utf-8").splitlines(), "````"]


def add(files: Files, config: Any, name: str, lines: list[str]) -> None:
    """Add a generated page."""
    files.append(File.generated(config, name, content="\n".join(lines) + "\n"))


def linked() -> Iterator[Path]:
    """Everything of the repository outside ``docs`` that a page links to."""
    for page in DOCS.rglob("*.md"):
        for part in CODE.split(page.read_text(encoding="utf-8"))[::2]:
            for match in LINK.finditer(part):
                path = outside(page, match[2])
                if path is not None:
                    yield path


def outside(page: Path, link: str) -> Path | None:
    """What a link means, if that is of the repository and not of ``docs``."""
    if re.match(r"[a-z]+:", link):
        return None
    path = (page.parent / link).resolve()
    return path if path.exists() and path.is_relative_to(ROOT) and not path.is_relative_to(DOCS) \
        else None


# -- links -------------------------------------------------------------------------------------
def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point the links of a page to the pages of the site; leave some pages out of the search."""
    if page.file.src_uri.startswith(UNSEARCHED):
        page.meta["search"] = {"exclude": True}
    if page.file.src_uri.startswith(SOURCE + "/"):
        return markdown
    if COMMANDS in markdown:
        return markdown.replace(COMMANDS, "\n".join(commands()))
    here = DOCS / page.file.src_uri

    def rewritten(match: re.Match[str]) -> str:
        link, path = match[2], outside(here, match[2])
        if path is not None:
            source = path.relative_to(ROOT).as_posix()
            link = (f"{SOURCE}/{source}/index.md" if path.is_dir()
                    else f"{SOURCE}/{source}" + ".md" * (path.suffix != ".md"))
            link = posixpath.relpath(link, posixpath.dirname(page.file.src_uri))
        elif not re.match(r"[a-z]+:", link) and (here.parent / link).is_dir():
            first = index(str((here.parent / link).resolve().relative_to(DOCS)))
            link = posixpath.join(link, first.name if first else "index.md")
        return f"{match[1]}{link}{match[3] or ''}{match[4]}"

    return "".join(part if number % 2 else LINK.sub(rewritten, part)
                   for number, part in enumerate(CODE.split(markdown)))


# -- the command line --------------------------------------------------------------------------
def commands() -> Iterator[str]:
    """The help of every sub-command."""
    sys.path.insert(0, str(ROOT))
    from hpccoll.cli import main

    group = click.Context(main, info_name="hpccoll")
    for name in main.list_commands(group):
        command = main.get_command(group, name)
        context = click.Context(command, info_name=name, parent=group)
        yield f"## hpccoll {name}"
        yield ""
        yield from paragraphs(command.help or "")
        usage = " ".join(command.collect_usage_pieces(context))
        yield from ("```text", f"hpccoll {name} {usage}", "```", "",
                    "| option | meaning |", "|---|---|")
        for parameter in command.get_params(context):
            words = parameter.get_help_record(context)
            if words is not None:
                option, meaning = words
                yield f"| `{option}` | {MARKDOWN.sub(QUOTED, meaning)} |"
        yield ""


def paragraphs(text: str) -> Iterator[str]:
    """The help of a command; what click leaves as it is becomes a block of code."""
    for part in inspect.cleandoc(text).partition("\f")[0].split("\n\n"):
        first, _, rest = part.partition("\n")
        yield from ("```text", rest, "```", "") if first.strip() == "\b" else (part, "")


# -- docstrings --------------------------------------------------------------------------------
class Fences(Preprocessor):
    """Put doctests into fences."""

    def run(self, lines: list[str]) -> list[str]:
        fenced: list[str] = []
        inside = fence = False
        for line in lines:
            fence ^= line.lstrip().startswith("```")
            starts = line.startswith(">>> ") and not fence
            if starts and not inside:
                fenced += ["", "```pycon"]
                inside = True
            elif inside and not line.strip():
                fenced.append("```")
                inside = False
            fenced.append(line)
        return fenced + ["```"] * inside


class Doctests(Extension):
    """The extension that does so; before blocks of code are looked for."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(Fences(md), "doctests", 40)
