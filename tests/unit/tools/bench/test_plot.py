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


@pytest.mark.parametrize("names, sizes, said", [
    (("native", "ring"), 2, "shaded: the middle parts of the run; "),
    (("native", "auto", "ring", "rails", "pat"), 2, "shaded: the middle parts of the run of auto"),
    (("native", "ring", "rails", "pat", "rabenseifner"), 2, None),
    (("native", "ring"), 1, None)])
def test_shades_are_named_where_there_are_some(tmp_path, monkeypatch, names, sizes, said):
    pytest.importorskip("matplotlib")
    groups = [[result(name, [4, 5, 6, 7, 8, 9], nbytes=8 << n) for name in names]
              for n in range(sizes)]
    drawn = []
    monkeypatch.setattr(plot, "save", lambda figure, path: drawn.append(figure))
    plot.draw(groups, ENVIRONMENT, str(tmp_path / "one.png"))
    texts = " ".join(text.get_text() for text in drawn[0].texts)
    assert said in texts if said else "shaded" not in texts
    assert bool(said) == any(panel.collections for panel in drawn[0].axes)


@pytest.mark.parametrize("sizes", [range(3, 25), range(3, 25, 2), range(3, 25, 4), range(20, 25)])
def test_the_label_of_the_memory_limit_covers_no_curve(monkeypatch, sizes):
    """Small messages are far below the limit, the largest beyond it, by what caches hold."""
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    groups = []
    for size in (1 << n for n in sizes):
        limit = size / 2e10
        groups.append([result(name, [1e6 * (late + limit * slow)], nbytes=size,
                              limit_seconds=limit)
                       for name, late, slow in (("native", 2e-5, 2.5), ("auto", 4e-6, 0.8),
                                                ("ring", 9e-6, 0.55))])
    drawn = []
    monkeypatch.setattr(plot, "save", lambda figure, path: drawn.append(figure))
    plot.draw(groups, ENVIRONMENT, "one.png")
    canvas = agg.FigureCanvasAgg(drawn[0])
    canvas.draw()
    panel = drawn[0].axes[1]
    label, = [text for text in panel.texts if text.get_text() == "memory limit"]
    box = label.get_window_extent(canvas.get_renderer())
    assert panel.get_window_extent().x0 <= box.x0 and box.x1 <= panel.get_window_extent().x1
    for line in panel.get_lines():
        assert not line.get_path().transformed(line.get_transform()).intersects_bbox(
            box, filled=False), line.get_label()
