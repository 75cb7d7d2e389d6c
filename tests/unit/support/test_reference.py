"""Programs as they are written: what the text says happens, and what it forbids."""

from random import Random

import pytest

from hpccoll.ir.collectives import block_counts
from hpccoll.ir.wellformed import keys_of, program_of
from hpccoll.proof.verifier import verify
from hpccoll.testing import every
from support.extra_schedules import extra_schedules
from support.reference import run


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_table_is_right_as_written(size):
    draw = Random(size)
    for _, made in every(size, None if size < 4 else range(1, 2)):
        programs = [program_of(made, rank) for rank in range(size)]
        keys, proof = keys_of(made), verify(made)
        sizes = ([draw.randrange(1, 4)] * keys if made.uniform else
                 block_counts(draw.randrange(1, 3 * keys + 1), keys)
                 if made.collective.payload == "vector" else
                 [draw.choice((0, 1, 2)) for _ in range(keys)])
        for in_place in (False, True) if made.collective.in_place else (False,):
            found = run(made, programs, sizes, in_place, draw)
            assert found.right, (made.title, sizes, found.why)
            assert found.rank_order or not proof.rank_order, made.title
            assert found.identical or not proof.replicas_identical, made.title


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_lanes_and_operations_of_the_network_are_right_as_written(size):
    draw = Random(size)
    for made in extra_schedules(size):
        programs = [program_of(made, rank) for rank in range(size)]
        keys, proof = keys_of(made), verify(made)
        for in_place in (False, True) if made.collective.in_place else (False,):
            for _ in range(8):
                sizes = [3] * keys if made.uniform else [draw.randrange(3) for _ in range(keys)]
                if made.collective.payload == "vector":
                    sizes = block_counts(sum(sizes), keys)
                found = run(made, programs, sizes, in_place, draw)
                assert found.right, (made.title, sizes, found.why)
                assert found.rank_order or not proof.rank_order, made.title
                assert found.identical or not proof.replicas_identical, made.title
