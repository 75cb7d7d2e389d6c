"""Tree walks: messages of a rank and its children, in rank order."""

from hpccoll.algorithms.parts import tree_walks
from hpccoll.algorithms.parts.trees import TreeNode
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, RIGHT, at, copy, recv, send

INNER = TreeNode(9, (7, 4, 6))


def test_a_fan_out_receives_and_then_sends_to_the_largest_subtree_first():
    whole = at(OUT, 0)
    assert tree_walks.fan_out(INNER, whole) == [
        (recv(9, whole),), (send(7, whole), send(4, whole), send(6, whole))]
    assert tree_walks.fan_out(TreeNode(None, ())) == []


def test_a_fan_in_reduces_the_nearest_child_first_on_its_side():
    whole = at(OUT, 0)
    assert tree_walks.fan_in(5, INNER, whole) == [
        (recv(6, whole, reduce=RIGHT), recv(4, whole, reduce=LEFT), recv(7, whole, reduce=RIGHT)),
        (send(9, whole),)]
    assert tree_walks.fan_in(5, INNER) == [(recv(6), recv(4), recv(7)), (send(9),)]


def test_a_leaf_sends_its_input_as_it_is():
    leaf = tree_walks.reduce(5, TreeNode(9, ()))
    assert leaf.rounds == ((send(9, at(IN, 0)),),) and not leaf.scratch
    inner = tree_walks.reduce(5, INNER)
    assert inner.rounds[0] == (copy(at(TMP, 0), at(IN, 0)),) and inner.scratch == (0,)
