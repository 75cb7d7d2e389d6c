"""Diagnosis of this job: facts of every rank, findings from them, and remedies.

Facts are gathered with MPI, findings are computed from facts alone, so that tests need no job. A
new check is a function from facts to findings in ``findings.CHECKS``; its input is a field of
``RankFacts``.
"""

from hpccoll.tools.doctor.facts import RankFacts as RankFacts
from hpccoll.tools.doctor.facts import gather as gather
from hpccoll.tools.doctor.findings import Finding as Finding
from hpccoll.tools.doctor.findings import examine as examine
