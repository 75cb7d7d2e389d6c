"""The picture."""

import pytest
from unit.bench_results import ENVIRONMENT, result

from hpccoll.explain import plotting
from hpccoll.tools.bench import plot


@pytest.mark.slow
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


@pytest.mark.parametrize("limited", [True, False])
def test_the_memory_limit_is_named_in_the_legend_where_there_is_one(monkeypatch, limited):
    """A name beside the line would lie on curves, or be cut off at the edge."""
    groups = [[result(name, [late * 2 ** n], nbytes=1 << n,
                      limit_seconds=2 ** n / 2e10 if limited and n > 20 else None)
               for name, late in (("native", 2), ("auto", 1))] for n in range(3, 25, 2)]
    drawn = []
    monkeypatch.setattr(plot, "save", lambda figure, path: drawn.append(figure))
    plot.draw(groups, ENVIRONMENT, "one.png")
    legend, = drawn[0].legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == ["auto", "native", *["memory limit"] * limited]
    limits = [line for line in drawn[0].axes[1].get_lines() if line.get_label() == "memory limit"]
    assert len(limits) == limited and not drawn[0].axes[1].texts
