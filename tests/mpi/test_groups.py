"""Parallel groups on real ranks: meshes, sequences, rings, experts, pipelines."""

import ml_dtypes
import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ArgumentError, MessageSizeError
from hpccoll.training.groups import (
    AXES,
    Experts,
    Pipeline,
    Ulysses,
    mesh,
    ring_blocks,
    ring_sums,
)


def test_every_axis_has_a_communicator_of_its_group(world):
    rank, size = world.Get_rank(), world.Get_size()
    inner = 2 if size % 2 == 0 else 1
    made = mesh(world, tp=inner)
    for axis in AXES:
        comm = getattr(made, axis)
        assert isinstance(comm, hpccoll.Comm) and comm.Get_name() == axis
        assert comm.Get_rank() == made.coordinates[axis]
        assert tuple(comm.allgather(rank)) in made.placement.groups(axis)
    total = numpy.array([10.0 ** rank])
    made.over("dp", "sp").Allreduce(MPI.IN_PLACE, total)
    members = made.placement.groups("dp", "sp")
    assert total[0] == sum(10.0 ** one for one in next(g for g in members if rank in g))
    assert str(made).startswith(f"mesh of {size} rank")
    made.Free()


def test_groups_lie_where_the_layout_says():
    size = MPI.COMM_WORLD.Get_size()
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup(),
                        layout="2x2@0,2,1,3" if size == 4 else str(size))
    made = mesh(comm, tp=-1, dp=2 if size == 4 else 1)
    if size == 4:
        assert made.placement.groups("tp") == [(0, 2), (1, 3)]
        assert made.tp.allgather(comm.Get_rank()) == [[0, 2], [1, 3]][comm.Get_rank() % 2]
    made.Free()
    comm.Free()


def test_sizes_that_do_not_fit_are_an_error_on_all_ranks(world):
    with pytest.raises(ArgumentError, match="tp=5"):
        mesh(world, tp=5)
    world.Barrier()


@pytest.mark.parametrize("dtype", ["f4", ml_dtypes.bfloat16])
@pytest.mark.parametrize("tokens, heads", [(24, 12), (13, 5), (1, 7), (3, 1)])
def test_sequences_change_form_and_come_back(world, tokens, heads, dtype):
    form, rank = Ulysses(world, tokens, heads), world.Get_rank()
    whole = (numpy.arange(tokens * heads * 2) % 251).reshape(tokens, heads, 2).astype(dtype)
    mine = whole[form.token_cuts[rank]:form.token_cuts[rank + 1]]
    inside = form.to_heads(mine)
    assert numpy.array_equal(inside, whole[:, form.head_cuts[rank]:form.head_cuts[rank + 1]])
    assert numpy.array_equal(form.to_tokens(inside), mine)


@pytest.mark.parametrize("dtype", ["f8", ml_dtypes.bfloat16])
def test_blocks_go_round_and_sums_come_home(world, dtype):
    rank, size = world.Get_rank(), world.Get_size()

    def block_of(owner):
        return (numpy.arange(3 * (owner + 1)).reshape(-1, 3) % 5 + owner).astype(dtype)

    mine = block_of(rank)
    seen = [(owner, block.copy()) for owner, block in ring_blocks(world, mine)]
    assert [owner for owner, _ in seen] == [(rank - turn) % size for turn in range(size)]
    assert all(numpy.array_equal(block, block_of(owner)) for owner, block in seen)
    sums = numpy.full_like(mine, numpy.nan)
    for _, block, added in ring_sums(world, mine, sums):
        added += block * numpy.asarray(2.0 ** rank, dtype)
    assert numpy.array_equal(sums, mine * numpy.asarray(2.0 ** size - 1, dtype))


def test_long_blocks_need_no_buffering(world):
    mine = numpy.full(1 << 18, world.Get_rank(), "f8")
    for owner, block in ring_blocks(world, mine, [mine.shape] * world.Get_size()):
        assert block[0] == block[-1] == owner


@pytest.mark.parametrize("capacity", [None, 1])
def test_tokens_reach_their_experts_and_come_back(world, capacity):
    rank, size = world.Get_rank(), world.Get_size()
    experts = 2 * size + 1
    tokens = 100.0 * rank + numpy.arange(rank + 2.0)[:, None] + numpy.arange(3)
    chosen = (numpy.arange(rank + 2)[:, None] * 3 + [rank, rank + 1]) % experts
    owner = Experts(world, experts, capacity)
    sent = owner.dispatch(tokens, chosen, numpy.full(chosen.shape, 0.5))
    number = numpy.repeat(numpy.arange(owner.cuts[rank], owner.cuts[rank + 1]), sent.counts)
    back = sent.combine(sent.tokens * (number + 1)[:, None])
    kept = numpy.zeros(chosen.shape, bool)
    room = dict.fromkeys(range(experts), capacity or len(tokens) * 2)
    for choice in range(2):
        for token in range(len(tokens)):
            room[chosen[token, choice]] -= 1
            kept[token, choice] = room[chosen[token, choice]] >= 0
    assert sent.dropped == (~kept).sum()
    scale = ((chosen + 1) * kept * 0.5).sum(1)
    assert numpy.array_equal(back, tokens * scale[:, None])
    assert world.allreduce(len(sent.tokens)) == world.allreduce(int(kept.sum()))
    of_outputs, of_weights = sent.combine_gradients(numpy.ones_like(tokens))
    assert (of_outputs == 0.5).all()
    assert numpy.array_equal(of_weights, (chosen + 1) * kept * tokens.sum(1)[:, None])
    of_tokens = sent.token_gradients(of_outputs * (number + 1)[:, None])
    assert numpy.array_equal(of_tokens, numpy.repeat(scale[:, None], 3, 1))


def test_a_choice_that_cannot_be_is_an_error_on_all_ranks(world):
    last = world.Get_size() - 1
    with pytest.raises(ArgumentError, match=rf"rank {last}\b"):
        Experts(world, 3).dispatch(numpy.zeros((1, 1)),
                                   [3 if world.Get_rank() == last else 2])
    world.Barrier()


def test_microbatches_go_forward_and_back(world):
    stage, waiting, results = Pipeline(world), [], []
    inputs = numpy.zeros((5, 1 << 16), "f4")
    for what, number in stage.steps(5):
        if what == "forward":
            inputs[number] = number + 1
            if not stage.is_first:
                stage.receive_activations(inputs[number]).wait()
            if not stage.is_last:
                waiting.append(stage.send_activations(inputs[number] * 2))
        else:
            gradient = numpy.ones(1 << 16, "f4")
            if not stage.is_last:
                stage.receive_gradients(gradient).wait()
            if not stage.is_first:
                waiting.append(stage.send_gradients(gradient * 2))
            results.append((inputs[number][-1], gradient[-1]))
    for passage in waiting:
        passage.wait()
    assert results == [((number + 1) * 2 ** stage.stage, 2 ** (stage.stages - 1 - stage.stage))
                       for number in range(5)]


@pytest.mark.parametrize("count", [3, 5])
def test_sizes_that_differ_between_stages(world, count):
    stage = Pipeline(world)
    sent = [] if stage.is_last else [stage.send_activations(numpy.zeros(count))]
    if not stage.is_first:
        with pytest.raises(MessageSizeError, match=f"activations: .*rank {stage.stage - 1}"):
            stage.receive_activations(numpy.zeros(4)).wait()
    for passage in sent:
        passage.wait()
