"""Explanations of schedules for ranks with an order of their own."""


from hpccoll.algorithms import schedule
from hpccoll.explain import as_json, as_text


def test_explained():
    made = schedule("allreduce", "leader", topology="2x2@0,2,1,3")
    assert "topology=2x2@0,2,1,3" in as_text(made)
    assert as_json(made)["topology"] == "2x2@0,2,1,3"
