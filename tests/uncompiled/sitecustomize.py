"""Takes the compiled parts away: with this folder on PYTHONPATH, Python finds none of them.

Python imports a module of this name before anything else, and refuses to import what ``None``
stands for. A copy of the tree without them would not do: an editable installation, as that of
``make test``, looks in the checkout for whatever is missing.
"""

import sys

sys.modules.update(dict.fromkeys(("hpccoll.arrays._half", "hpccoll.runtime.execution._executor",
                                  "hpccoll.simulator._events")))
