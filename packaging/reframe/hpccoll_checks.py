"""ReFrame tests of an installation of hpccoll: reframe -C SITE.py -c hpccoll_checks.py -r

They run ``hpccoll`` of the loaded environment with the launcher of the site's configuration.
"""

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, performance_function, run_after, sanity_function


class HpccollCheck(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "hpccoll"
    #: Ranks of a test; two are enough for a wrong MPI library, more show the network.
    ranks = parameter([2, 4])

    @run_after("init")
    def set_ranks(self):
        self.num_tasks = self.ranks


@rfm.simple_test
class Doctor(HpccollCheck):
    """The ranks are one job on the right MPI library, and an allreduce over all is correct."""

    @run_after("setup")
    def set_options(self):
        self.executable_opts = ["doctor", "--ranks", str(self.ranks)]

    @sanity_function
    def result_is_correct(self):
        return sn.all([sn.assert_found(r"the\s+result of an hpccoll allreduce", self.stdout),
                       sn.assert_not_found(r"^error ", self.stdout)])


@rfm.simple_test
class Allreduce(HpccollCheck):
    """All results of the benchmark are right; the time of hpccoll's choice beside the library's."""

    executable_opts = ["bench", "allreduce", "-m", "8:1M", "--step", "131072"]

    @sanity_function
    def results_are_right(self):
        return sn.assert_found(r"^# wrong elements: 0 ", self.stdout)

    @performance_function("ratio")
    def one_mebibyte(self):
        """Time of the MPI library over that of hpccoll's choice."""
        time = r"\s+[\d.]+ \S+"
        return sn.extractsingle(rf"^[ *]+1 MiB{time}{time}\s+([\d.]+)", self.stdout, 1, float)
