"""Trees as vectors: types in the order in which they come, and what ranks compare."""

import pytest

jax = pytest.importorskip("jax")
fusion = pytest.importorskip("hpccoll.jax.fusion")
jnp = jax.numpy


def test_types_in_the_order_in_which_they_come():
    leaves = [jnp.zeros(1), jnp.zeros(2, jnp.int32), jnp.zeros(3), jnp.zeros(0, jnp.bfloat16)]
    assert list(fusion.by_dtype(leaves).values()) == [[0, 2], [1], [3]]


def test_what_ranks_compare_has_no_axis_of_ranks():
    leaves = [jnp.zeros((4, 3)), jnp.zeros((4,), jnp.int32)]
    names = ["['a']", "['b']"]
    assert fusion.agreement_of(names, leaves).leaves == ("['a']: float32[4,3]", "['b']: int32[4]")
    assert fusion.agreement_of(names, leaves, 1).leaves == ("['a']: float32[3]", "['b']: int32[]")
