"""Job scripts: what is known about sites, and scripts made from it.

The files in ``jobs/`` at the top of the repository are written here; a test compares them. A new
site is an entry of ``sites.SITES``, with the page that its facts come from; a batch system an entry
of ``directives.BATCH``, a launcher one of ``launches.LAUNCHES``.
"""

from hpccoll.tools.jobs.job import Job as Job
from hpccoll.tools.jobs.render import TEMPLATES as TEMPLATES
from hpccoll.tools.jobs.render import script as script
from hpccoll.tools.jobs.sites import SITES as SITES
from hpccoll.tools.jobs.sites import find as find
