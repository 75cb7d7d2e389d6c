"""The site has every page, and every public name. It is built, with warnings for errors.

``make docs`` builds it, and so does a test where mkdocs is installed.
"""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest
from doc.pages import blocks
from launch import ROOT

from support.folded import folded

DOCS = ROOT / "docs"
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
#: The pages that ``nav`` names.
NAMED = re.findall(r"^ +- [^:\n]+: (\S+\.md)$", SETTINGS, re.MULTILINE)
#: Every page of users: not the tables beside the records, nor the pages for builders.
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")
               if page.relative_to(DOCS).parts[0] not in ("data", "internal"))


def test_nav_names_no_page_twice():
    assert len(NAMED) == len(set(NAMED)) > 10


@folded("name", PAGES)
def test_a_page_is_in_nav(name):
    assert name in NAMED


@pytest.mark.parametrize("name", NAMED)
def test_what_nav_names_exists(name):
    assert (DOCS / name).exists()


#: Packages whose names are in the reference -> the list that has them.
PUBLIC = {"hpccoll": ("__all__",), "hpccoll.explain": ("__all__",),
          "hpccoll.training": ("__all__",), "hpccoll.torch": ("PLACES", "__all__"),
          "hpccoll.jax": ("__all__",), "hpccoll.keras": ("__all__",)}
#: Names that have a page of their own in another way.
ELSEWHERE = {"hpccoll.HpccollError": "hpccoll.errors"}


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(package):
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    path = ROOT.joinpath(*package.split("."), "__init__.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in PUBLIC[package]:
            for name in ast.literal_eval(node.value):
                full = f"{package}.{name}"
                assert ELSEWHERE.get(full, full) in shown, full
    for name in shown:
        assert name.startswith("hpccoll.")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_site_is_built_without_a_warning(tmp_path):
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "mkdocstrings")):
        pytest.skip("mkdocs is not in this environment; make docs builds the site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    for page, words in {"comm": ("Allreduce", "BufSpec", "SUM"), "torch": ("AgreedGradScaler",),
                        "training": ("Exchange",), "command-line": ("hpccoll doctor",)}.items():
        text = (tmp_path / "api" / page / "index.html").read_text(encoding="utf-8")
        assert all(word in re.sub("<[^>]*>", "", text) for word in words)
    browser = shutil.which("chromium")
    for page in ("install", "design", "machines") if browser else ():
        path = tmp_path / page / "index.html"
        path.write_text(path.read_text("utf-8").replace("</head>", MEASURES + "</head>"), "utf-8")
        done = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900",
             "--virtual-time-budget=3000", "--dump-dom", path.as_uri()],
            capture_output=True, text=True, check=False)
        assert "<title>cut: 0 of " in done.stdout, page


#: Counts the samples of a page that its column cuts.
MEASURES = """<script>addEventListener("load", () => {
const all = [...document.querySelectorAll("pre > code")]
const cut = all.filter(code => code.scrollWidth > code.clientWidth + 1)
document.title = `cut: ${cut.length} of ${all.length}`})</script>"""
#: Longest line of a sample, which the column of the site shows on a screen of 1280 pixels.
LONGEST = 100


@folded("name", [name for name in PAGES if name not in ("trace.md", "hangs.md")])
def test_samples_are_not_cut(name):
    for block in blocks((DOCS / name).read_text(encoding="utf-8")):
        assert max(map(len, block.code.splitlines()), default=0) <= LONGEST, block.line
