"""The picture."""

import pytest
from unit.bench_results import ENVIRONMENT, result

from hpccoll.explain import plotting
from hpccoll.tools.bench import plot


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    groups = [[result("native", [4 * n], nbytes=n), result("ring", [2], nbytes=n)]
              for n in (8, 1024)]
    groups += [[result(name, [400], nbytes=1 << 20, limit_seconds=1e-4)
                for name in ("native", "ring")]]
    barrier = [[result("native", [4], nbytes=0, collective="barrier", dtype=None, op=None)]]
    for name, drawn in (("one.png", groups), ("many.svg", groups + barrier),
                        ("none.pdf", [[result("ring", [2])]])):
        plotting.check(str(tmp_path / name))
        plot.draw(drawn, ENVIRONMENT, str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 5000
