"""Links between the pages lead somewhere, in a plain git browser."""

import re

import pytest
from doc.pages import BLOCK, PAGES
from launch import ROOT

LINK = re.compile(r"\]\(([^()\s]+)\)")


def anchors(text):
    """The anchors of a page, as git browsers make them of its headings."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
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


def test_anchors_are_those_of_git_browsers():
    assert anchors("# Is it well? `hpccoll doctor`\n```\n# no heading\n```\n## A b\n") == {
        "is-it-well-hpccoll-doctor", "a-b"}
