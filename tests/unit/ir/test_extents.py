"""Extents: how they join, shift, and share memory."""

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.extents import (
    Extent,
    Local,
    alias,
    is_within,
    merge_parts,
    overlap,
    pack_extents,
    shift_scratch,
)
from hpccoll.ir.schedule import at


def places(ins, outs):
    return {IN: pack_extents(IN, ins), OUT: pack_extents(OUT, outs)}


def test_alias_same():
    shared = places((2, 3), (2, 3))
    alias("same", shared, 0, 0)
    assert shared[IN] == shared[OUT] == pack_extents(OUT, (2, 3))
    only = {IN: pack_extents(IN, (2,))}
    alias("same", only, 1, 0)  # a rank that is not the root of a reduction
    assert only == {IN: pack_extents(IN, (2,))}


def test_alias_own():
    shared = places((3,), (2, 3, 4))
    alias("own", shared, 1, 0)
    assert shared[IN] == [Extent(OUT, 2, 3)]


def test_alias_front():
    shared = places((2, 3), (3,))
    alias("front", shared, 1, 0)
    assert shared[IN] == pack_extents(OUT, (2, 3)) and shared[OUT] == [Extent(OUT, 0, 3)]


def test_alias_root():
    shared = places((2, 3), (3,))
    alias("root", shared, 1, 1)
    assert shared[OUT] == [Extent(IN, 2, 3)]
    elsewhere = {OUT: pack_extents(OUT, (2,))}
    alias("root", elsewhere, 0, 1)
    assert elsewhere[OUT] == [Extent(OUT, 0, 2)]


def test_scratch_does_not_shift():
    assert shift_scratch(Extent(TMP, 3, 2), 10) == Extent(TMP, 3, 2)
    assert shift_scratch(Extent(OUT, 3, 2), 10) == Extent(OUT, 13, 2)


def test_parts_that_continue_each_other_are_joined_in_their_order():
    assert merge_parts([at(OUT, 0, 2), at(OUT, 2), at(TMP, 3), at(TMP, 4), at(TMP, 0)]) == [
        at(OUT, 0, 3), at(TMP, 3, 5), at(TMP, 0)]
    assert merge_parts([Extent(OUT, 0, 2), Extent(OUT, 9, 0), Extent(OUT, 2, 1),
                        Extent(TMP, 3, 1)]) == [
        Extent(OUT, 0, 3), Extent(TMP, 3, 1)]


def test_local_steps_are_joined_where_all_operands_go_on():
    one, two = Extent(OUT, 0, 1), Extent(OUT, 1, 1)
    left, right = Extent(IN, 4, 1), Extent(IN, 5, 1)
    assert merge_parts([Local(one, left), Local(two, right)]) == [
        Local(Extent(OUT, 0, 2), Extent(IN, 4, 2))]
    assert merge_parts([Local(one, left, one), Local(two, right, two)]) == [
        Local(Extent(OUT, 0, 2), Extent(IN, 4, 2), Extent(OUT, 0, 2))]
    for apart in (Local(two, left), Local(two, right, two), Local(one, right)):
        assert merge_parts([Local(one, left), apart]) == [Local(one, left), apart]
    assert merge_parts([Local(one, left, one), Local(two, right)]) == [
        Local(one, left, one), Local(two, right)]


def test_sharing_elements():
    extent = Extent(OUT, 2, 3)
    assert overlap(extent, Extent(OUT, 4, 5)) and not overlap(extent, Extent(OUT, 5, 1))
    assert not overlap(extent, Extent(TMP, 2, 3))
    assert is_within(Extent(OUT, 2, 3), extent) and is_within(Extent(OUT, 3, 1), extent)
    assert not is_within(Extent(OUT, 1, 2), extent) and not is_within(Extent(IN, 2, 1), extent)
