"""Records of ranks that are not numbered host by host."""


import pytest

from hpccoll.simulator.catalog import find
from hpccoll.simulator.validation import compare


def test_a_record_of_ranks_dealt_out_is_simulated_so():
    def seconds(hosts):
        record = {"environment": {"topology": None, "rank_hosts": hosts}, "results": [
            {"collective": "allreduce", "candidate": name, "nbytes": 64, "count": 16,
             "root": None, "statistics": {"p50_seconds": 1e-6}}
            for name in ("leader", "linear")]}
        return [found.simulated for found in compare(record, find("hdr"))]
    assert seconds(["a", "b"] * 4)[0] == pytest.approx(seconds(["a"] * 4 + ["b"] * 4)[0])
