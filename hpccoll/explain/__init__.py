"""Explanations: a schedule in words, as plain data, as a picture; the table as a list, as a page.

``replay`` runs a schedule on block names; ``text`` and ``space_time`` show what it
finds, ``forms`` writes it for other programs, ``catalogue`` shows the table of algorithms. Nothing
here judges a schedule: what is proved is asked of :mod:`hpccoll.proof`. A new way to show a
schedule is a module that reads ``replay``.
"""

from hpccoll.explain.catalogue import as_list, collectives
from hpccoll.explain.forms import as_json, as_msccl
from hpccoll.explain.space_time import draw
from hpccoll.explain.text import as_text

__all__ = ["as_json", "as_list", "as_msccl", "as_text", "collectives", "draw"]
