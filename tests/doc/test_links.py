"""Links between the pages, and paths and names in them, lead somewhere, in a plain git browser."""

import re

from doc.pages import BLOCK, PAGES, anchors
from launch import ROOT

from support.folded import folded

LINK = re.compile(r"\]\(([^()\s]+)\)")
#: A path of the repository, or of a module below ``hpccoll/``; a placeholder may stand at its end.
PATH = re.compile(r"(?<![\w./$-])((?:hpccoll|tests|examples|jobs|docs)/[\w./*-]*"
                  r"|[a-z_]+/[\w/]*\.py\b)")
#: A name of the package, and whether it is called.
NAME = re.compile(r"(?<![\w./-])hpccoll((?:\.[A-Za-z_]\w*)+)(\()?")


@folded("page", PAGES)
def test_links(page):
    dead = []
    for link in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            dead.append(link)
        elif anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
            dead.append(f"{link}: no such heading")
    assert not dead


def lost_paths(text):
    """The paths in a text that are not there."""
    for path in PATH.findall(text):
        path = path.partition("NNNN")[0].rstrip(".")
        if not any(any(folder.glob(path)) for folder in (ROOT, ROOT / "hpccoll")):
            yield path


def lost_names(text):
    """The names below ``hpccoll`` in a text that no module has, and modules that are called."""
    for name, called in NAME.findall(text):
        place, rest = ROOT / "hpccoll", name.strip(".").split(".")
        while rest and (place / rest[0]).is_dir():
            place /= rest.pop(0)
        if rest and (place / f"{rest[0]}.py").exists():
            file = place / f"{rest.pop(0)}.py"
        else:
            file = place / "__init__.py"
        # Of the name in a module only the first part is looked for: the rest are attributes.
        if called and not rest or rest and not re.search(
                rf"\b{rest[0]}\b", file.read_text(encoding="utf-8")):
            yield f"hpccoll{name}"


@folded("page", PAGES)
def test_paths_and_names_are_there(page):
    text = page.read_text(encoding="utf-8")
    assert not [*lost_paths(text), *lost_names(text)]


def test_what_is_lost_is_found():
    text = ("`tests/unit/test_none.py`, tests/mpi, `tune/choose.py`, `tune/none.py`, "
            "jobs/*.sbatch. docs/internal/decisions/NNNN-title.md, $HOME/hpccoll/x")
    assert list(lost_paths(text)) == ["tests/unit/test_none.py", "tune/none.py"]
    assert list(lost_names("`hpccoll.Comm`, hpccoll.algorithms(), hpccoll.tune.choose.choose, "
                           "`hpccoll.engine`, hpccoll.errors.None_.")) == [
        "hpccoll.algorithms", "hpccoll.engine", "hpccoll.errors.None_"]


def test_anchors_are_those_of_git_browsers():
    assert anchors("# Is it well? `hpccoll doctor`\n```\n# no heading\n```\n## A b\n") == {
        "is-it-well-hpccoll-doctor", "a-b"}


def test_decisions_have_one_form():
    pages = sorted((ROOT / "docs" / "internal" / "decisions").glob("*.md"))
    assert pages
    for page in pages:
        lines = page.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith(f"# {page.name[:4]}: ") and lines[2].startswith("Status: "), page
        parts = [re.match(r"\*\*(\w+)\.\*\*", line) for line in lines]
        assert [part[1] for part in parts if part] == [
            "Context", "Decision", "Alternatives", "Consequences"], page
        assert len(lines) <= 35, page
