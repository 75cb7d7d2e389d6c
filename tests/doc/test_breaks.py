"""What ``make broken`` breaks is there: a break whose text has changed would break nothing."""

import broken

from support.folded import folded


@folded("entry", broken.BREAKS)
def test_the_text_that_is_broken_stands_once(entry):
    for file, text, instead in entry.edits:
        assert (broken.launch.ROOT / file).read_text(encoding="utf-8").count(text) == 1
        assert text != instead
