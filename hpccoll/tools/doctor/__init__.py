"""What is wrong with this job, and what to do about it: facts of every rank, findings from them.

Facts are gathered with MPI, findings are computed from facts alone, so that tests need no job. A
new check is a function from facts to findings in ``findings.CHECKS``; what it needs to know is a
field of ``RankFacts``.
"""

from hpccoll.tools.doctor.facts import RankFacts as RankFacts
from hpccoll.tools.doctor.facts import gather as gather
from hpccoll.tools.doctor.findings import Finding as Finding
from hpccoll.tools.doctor.findings import examine as examine
