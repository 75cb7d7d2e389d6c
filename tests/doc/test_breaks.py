"""What ``make broken`` breaks is there: a break that edits nothing would prove nothing."""

import ast
import builtins
import symtable

import breaks
import broken
import launch
import pytest

from support.edits import read
from support.folded import folded


@pytest.fixture(scope="module")
def sources():
    return read(launch.ROOT)


def unknown(text):
    """The names that a module uses and nobody defines."""
    def global_names(table):
        yield from (one.get_name() for one in table.get_symbols() if one.is_global())
        for child in table.get_children():
            yield from global_names(child)
    table = symtable.symtable(text, "", "exec")
    defined = {one.get_name() for one in table.get_symbols() if one.is_assigned()
               or one.is_imported() or one.is_namespace()}
    return set(global_names(table)) - defined - set(dir(builtins)) - {"__file__"}


@folded("entry", breaks.BREAKS)
def test_the_text_that_is_broken_is_found_once(sources, entry):
    """In Python the broken file is another program, without a name that nothing defines."""
    for edit in filter(None, (entry.edit, entry.also)):
        path, text = edit.made(sources)
        assert text != sources[path]
        if path.suffix == ".py":
            assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(sources[path]))
            assert not unknown(text) - unknown(sources[path])


def test_every_room_has_tests_for_its_mutants():
    rooms = {path.parent.name for path in (launch.ROOT / "hpccoll").glob("*/__init__.py")}
    assert set(broken.RANKS) == rooms
    for names in broken.RANKS.values():
        assert all((launch.ROOT / file).exists() for file in launch.files(*names))
