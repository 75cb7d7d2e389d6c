"""Which calls the compiled executor recognises, without ranks."""

import inspect
import sys

from hpccoll.comm.blocking import (
    BlockingMixin,
)
from hpccoll.comm.nonblocking import NonblockingMixin
from hpccoll.comm.persistent import PersistentMixin
from hpccoll.comm.recognition import new_calls, note
from hpccoll.ir.methods import FORMS, PERSISTENT, TABLE
from support.folded import folded


@folded("form, name", [(form, name) for form in FORMS for name in TABLE])
def test_methods_are_those_of_the_table(form, name):
    title = form.format(name)
    cls = dict(zip(FORMS, (BlockingMixin, NonblockingMixin, PersistentMixin)))[form]
    method, row = getattr(cls, title.capitalize()), vars(sys.modules[cls.__module__])[title.upper()]
    assert method.__name__ == title.capitalize() and method.__doc__
    assert row.title == title and title.upper() in inspect.unwrap(method).__code__.co_names
    info = ["info"] if form == PERSISTENT else []
    assert list(inspect.signature(method).parameters) == ["self", *row.arguments, *info]
    assert list(inspect.signature(row.resolve).parameters) == ["size", "rank", *row.arguments]


def test_without_the_compiled_executor_methods_stand_for_themselves(monkeypatch):
    monkeypatch.setattr("hpccoll.comm.recognition.BUILT", False)
    from hpccoll.comm.recognition import recognise_calls
    assert recognise_calls(note) is note and new_calls() is None
