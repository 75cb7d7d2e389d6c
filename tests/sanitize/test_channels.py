"""The channels between compiled executors have no race; what publishes too early is one."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest
from launch import ROOT

#: A program in the folder of this file, which is no package.
_spec = importlib.util.spec_from_file_location("sanitize_run", ROOT / "tests/sanitize/run.py")
sanitize = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sanitize)

FEW = "400"
#: What orders a cell's bytes and the word of a message, on either side.
ANNOUNCED = "number << SIZE_BITS | word, memory_order_release"
GIVEN_BACK = "number,\n                                  memory_order_release"

pytestmark = pytest.mark.slow


def run(program):
    return subprocess.run([program, FEW], env={**os.environ, **sanitize.SETTINGS}, timeout=90,
                          capture_output=True, text=True, check=False)


@pytest.mark.parametrize("sanitizer", sanitize.SANITIZERS)
def test_every_message_arrives_whole_and_in_order(tmp_path, sanitizer):
    if not sanitize.has(sanitizer, tmp_path):
        pytest.skip(f"the C compiler has no -fsanitize={sanitizer}")
    sanitize.build_stress(sanitizer, tmp_path / "channels")
    done = run(tmp_path / "channels")
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    assert done.stdout.count(" 0 words wrong") == len(done.stdout.splitlines()) == 40


def test_who_has_no_sanitizer_is_told_that_nothing_was_checked(monkeypatch, capsys):
    monkeypatch.setattr(sanitize, "has", lambda *_: False)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert not sanitize.main()
    assert capsys.readouterr().out.splitlines()[-1].startswith("NOTHING WAS CHECKED")


@pytest.mark.parametrize("order", [ANNOUNCED, GIVEN_BACK], ids=["announced", "given back"])
def test_a_word_that_orders_nothing_is_found(tmp_path, order):
    if not sanitize.has("thread", tmp_path):
        pytest.skip("the C compiler has no -fsanitize=thread")
    for path in (sanitize.RUNTIME / "_running.c", *sanitize.RUNTIME.glob("_*.h")):
        shutil.copy(path, tmp_path)
    source = tmp_path / "_running.c"
    text = source.read_text(encoding="utf-8")
    assert text.count(order) == 1
    source.write_text(text.replace(order, order.replace("release", "relaxed")), encoding="utf-8")
    sanitize.build_stress("thread", tmp_path / "channels", tmp_path)
    done = run(tmp_path / "channels")
    assert done.returncode and "data race" in done.stderr, done.stdout + done.stderr
