"""The site has every page. ``make docs`` builds it, and takes warnings for errors."""

import re

import pytest
from launch import ROOT

DOCS = ROOT / "docs"
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
#: What ``nav`` names: pages, and folders that stand for all their pages.
NAMED = re.findall(r"^ +- [^:\n]+: (\S+(?:\.md|/))$", SETTINGS, re.MULTILINE)
#: Every page but the tables beside the records, which performance.md links to.
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")
               if page.relative_to(DOCS).parts[0] != "data")


def test_nav_names_no_page_twice():
    assert len(NAMED) == len(set(NAMED)) > 10


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_in_nav(name):
    assert name in NAMED or f"{name.rpartition('/')[0]}/" in NAMED


@pytest.mark.parametrize("name", NAMED)
def test_what_nav_names_exists(name):
    assert (DOCS / name).exists()
