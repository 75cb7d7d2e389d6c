"""What is wrong with this job, and what to do about it: facts of every rank, findings from them."""

from hpccoll.doctor.facts import Facts, gather
from hpccoll.doctor.findings import Finding, examine

__all__ = ["Facts", "Finding", "examine", "gather"]
