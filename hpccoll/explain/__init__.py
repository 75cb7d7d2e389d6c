"""Explanations: a schedule as text, plain data or plot; the table of algorithms as a list.

``replay`` runs a schedule on block names; ``text`` and ``space_time`` show the result, ``forms``
exports it for other programs. Nothing here verifies a
schedule: :mod:`hpccoll.proof` does. A new way to show a schedule is a module that uses ``replay``.
"""

from hpccoll.explain.forms import as_json, as_msccl
from hpccoll.explain.space_time import draw
from hpccoll.explain.text import as_list, as_text, collectives

__all__ = ["as_json", "as_list", "as_msccl", "as_text", "collectives", "draw"]
