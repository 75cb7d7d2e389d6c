"""A schedule explained: in words, as plain data, and as a space-time picture."""

from hpccoll.explain.json_form import as_json
from hpccoll.explain.space_time import draw
from hpccoll.explain.text import as_text

__all__ = ["as_json", "as_text", "draw"]
