"""A schedule explained: in words, as plain data, and as a space-time picture."""

from hpccoll.explain.data import as_json
from hpccoll.explain.picture import draw
from hpccoll.explain.words import as_text

__all__ = ["as_json", "as_text", "draw"]
