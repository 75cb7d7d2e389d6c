"""Job scripts: what is known about sites, and scripts made from it.

The files in ``jobs/`` at the top of the repository are scripts made here; a test says so.
"""

from hpccoll.tools.jobs.job import Job
from hpccoll.tools.jobs.render import TEMPLATES, script
from hpccoll.tools.jobs.sites import SITES, find

__all__ = ["SITES", "TEMPLATES", "Job", "find", "script"]
