"""What one rank says of itself."""

import sys

import pytest

from hpccoll.cuda import has_cupy
from hpccoll.tools.doctor.facts import local_facts

CUPY = """
class runtime:
    class CUDARuntimeError(Exception): pass
    @staticmethod
    def getDeviceCount():
        if {count} < 0:
            raise runtime.CUDARuntimeError
        return {count}
    @staticmethod
    def deviceGetPCIBusId(number):
        return f"0000:0{{number}}:00.0"
class cuda:
    runtime = runtime
"""


@pytest.mark.parametrize("count, found", [(2, ("0000:00:00.0", "0000:01:00.0")), (0, ()),
                                          (-1, ())])
def test_devices_are_what_cupy_sees(tmp_path, monkeypatch, count, found):
    (tmp_path / "cupy.py").write_text(CUPY.format(count=count))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    has_cupy.cache_clear()
    try:
        assert local_facts().devices == found
    finally:
        sys.modules.pop("cupy", None)  # whoever looks for CuPy next must not find this one
        has_cupy.cache_clear()


def test_variables_that_launchers_set_for_each_rank_are_left_out():
    found = local_facts({"I_MPI_PIN_INFO": "1", "I_MPI_FABRICS": "shm", "HPCCOLL_REPORT": "5",
                         "HOME": "/"})
    assert found.variables == {"I_MPI_FABRICS": "shm", "HPCCOLL_REPORT": "5"}
