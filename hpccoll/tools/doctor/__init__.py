"""What is wrong with this job, and what to do about it: facts of every rank, findings from them."""

from hpccoll.tools.doctor.facts import RankFacts, gather
from hpccoll.tools.doctor.findings import Finding, examine

__all__ = ["RankFacts", "Finding", "examine", "gather"]
