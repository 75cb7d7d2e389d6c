"""Every example runs as its header says, and says itself whether its answer is right."""

import re
import sys

import pytest
from doc.pages import FRAMEWORKS, PAGES, blocks, commands, need_frameworks
from launch import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
#: Lines of an example that is longer than the others, which have less than 80.
LONGER = {"synthesize": 190}
#: Plain mpi4py programs: hpccoll comes in from outside, by ``hpccoll run``.
UNCHANGED = [path for path in EXAMPLES
             if not re.search(r"^(import|from) hpccoll", path.read_text(), re.MULTILINE)]
#: Examples that a page starts on ranks.
SHOWN = {name for page in PAGES for block in blocks(page.read_text(encoding="utf-8"))
         if block.mark == "run" for command in commands(block.code)
         for name in re.findall(r"mpiexec .*examples/(\w+)\.py", command)}


def test_there_are_examples_of_both_kinds():
    assert len(EXAMPLES) >= 5
    assert 0 < len(UNCHANGED) < len(EXAMPLES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_what_it_needs(path):
    text = path.read_text(encoding="utf-8")
    head = " ".join(text.split('"""')[1].split())
    for module, extra in (("torch", "torch"), ("jax", "jax"), ("keras", "keras")):
        if re.search(rf"^(import|from) {module}\b", text, re.MULTILINE):
            assert re.search(rf"pip install -e '\.\[{extra}\]'", head), extra
    if "import z3" in text:
        assert "pip install z3-solver" in head
    if "from sklearn" in text:
        assert re.search(r"pip install (-e '\.\[\w+\]' )?scikit-learn", head)


@pytest.mark.slow
@pytest.mark.parametrize("path", [
    pytest.param(path, marks=[pytest.mark.long] * (path.stem in SHOWN)) for path in EXAMPLES],
    ids=lambda path: path.stem)
def test_example(job, path):
    """On three ranks; on two where each imports a framework for seconds.

    Those of pages run in ``make long`` only: ``test_pages.py`` runs what the page says.
    """
    text = path.read_text(encoding="utf-8")
    need_frameworks(text)
    ranks = 2 if FRAMEWORKS.search(text) else 3
    status, output = job(ranks, sys.executable, path)
    assert status == 0, output
    assert re.search(rf"\b{ranks} ranks\b", output), output


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_on_another_number_of_ranks(job, path, ranks):
    need_frameworks(path.read_text(encoding="utf-8"))
    status, output = job(ranks, sys.executable, path)
    assert status == 0, output
    assert re.search(rf"\b{'1 rank' if ranks == 1 else f'{ranks} ranks'}\b", output), output


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("name, words", [
    ("train_compressed.py", ["--compress", "bf61"]), ("train_jax.py", ["bf61"])])
def test_a_misspelt_compressor_is_a_usage_error(job, name, words):
    path = ROOT / "examples" / name
    need_frameworks(path.read_text(encoding="utf-8"))
    status, output = job(1, sys.executable, path, *words)
    assert status == 2 and "Traceback" not in output, output
    assert "did you mean 'bf16'" in output


@pytest.mark.long(every=3)
@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("path", UNCHANGED, ids=lambda path: path.stem)
def test_unchanged_program_on_hpccoll(job, path):
    status, output = job(3, sys.executable, "-m", "hpccoll", "run", path)
    assert status == 0, output
    assert "3 ranks" in output


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_can_be_read_at_a_glance(path):
    lines = path.read_text().splitlines()
    assert len(lines) < LONGER.get(path.stem, 80)
    assert max(map(len, lines)) <= 100
