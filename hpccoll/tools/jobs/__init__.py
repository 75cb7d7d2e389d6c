"""Job scripts: facts about sites, and scripts made from them.

The files in ``jobs/`` of the repository are generated here; a test compares them. A new
site is an entry of ``sites.SITES``, with the page that its facts come from; a batch system an entry
of ``launches.BATCH``, a launcher one of ``launches.LAUNCHES``.
"""

from hpccoll.tools.jobs.job import Job as Job
from hpccoll.tools.jobs.render import TEMPLATES as TEMPLATES
from hpccoll.tools.jobs.render import script as script
from hpccoll.tools.jobs.sites import SITES as SITES
from hpccoll.tools.jobs.sites import find as find
