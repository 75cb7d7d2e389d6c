"""MSCCL's XML: what is written is read back and proved; what cannot be read is said."""

import re

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.algorithms.msccl import read_msccl
from hpccoll.errors import ProofError, ScheduleError
from hpccoll.explain import as_msccl
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.order import waits
from hpccoll.ir.schedule import LEFT, Program, at, copy, recv, send
from hpccoll.proof.verifier import verify

#: A ring of three, in place, with fused steps, as MSCCL's own tools write it.
RING = """<algo name="ring3" proto="Simple" nchannels="1" nchunksperloop="3" ngpus="3"
 coll="allreduce" inplace="1">""" + "".join(f"""
 <gpu id="{r}" i_chunks="3" o_chunks="0" s_chunks="0"><tb id="0" send="{(r + 1) % 3}"
  recv="{(r - 1) % 3}" chan="0">
  <step s="0" type="s" srcbuf="i" srcoff="{r}" dstbuf="i" dstoff="{r}" cnt="1" depid="-1"
   deps="-1" hasdep="0"/>
  <step s="1" type="rrcs" srcbuf="i" srcoff="{(r - 1) % 3}" dstbuf="i" dstoff="{(r - 1) % 3}"
   cnt="1" depid="-1" deps="-1" hasdep="0"/>
  <step s="2" type="rrcs" srcbuf="i" srcoff="{(r - 2) % 3}" dstbuf="i" dstoff="{(r - 2) % 3}"
   cnt="1" depid="-1" deps="-1" hasdep="0"/>
  <step s="3" type="rcs" srcbuf="i" srcoff="{r}" dstbuf="i" dstoff="{r}" cnt="1" depid="-1"
   deps="-1" hasdep="0"/>
  <step s="4" type="r" srcbuf="i" srcoff="{(r - 1) % 3}" dstbuf="i" dstoff="{(r - 1) % 3}"
   cnt="1" depid="-1" deps="-1" hasdep="0"/></tb></gpu>""" for r in range(3)) + "</algo>"


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["4", "5", "2x3"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
def test_the_table_goes_there_and_back(collective, layout):
    """Without the copies of what is sent and received into at once, recursive doubling fails."""
    for name, entry in ALGORITHMS[collective].items():
        size = {"4": 4, "5": 5, "2x3": 6}[layout]
        made = (schedule(collective, name, topology=layout) if entry.hierarchical
                else schedule(collective, name, size))
        verify(read_msccl(as_msccl(made), name))


def test_fused_steps_in_place_are_read():
    made = read_msccl(RING, "ring3.xml")
    assert (made.algorithm, made.size, made.nblocks) == ("ring3", 3, 3)
    assert verify(made).rounds == 4


def test_threadblocks_are_lanes():
    # While a block is passed on, the next one may come; it may not come into what is being sent.
    assert waits(read_msccl(RING, "ring3.xml").program(0)) == (
        (), (0,), (0,), (1, 2), (2,), (3, 4), (1, 4), (5, 6), (3, 6))


def test_threadblocks_that_reduce_into_one_slot_wait_for_each_other():
    def star(rank, size):
        take, mine = copy(at(OUT, 0), at(IN, 0)), at(OUT, 0)
        if rank:
            return Program(((take,), (send(0, mine),), (recv(0, mine),)))
        return Program(((take,), (recv(1, mine, reduce=LEFT), recv(2, mine, reduce=LEFT)),
                        (send(1, mine), send(2, mine))))
    text = as_msccl(schedule("allreduce", star, 3))
    verify(read_msccl(text, "x.xml"))
    first, second = re.findall(r'<step [^>]*type="rrc"[^>]*>', text)
    assert 'depid="0" deps="0"' in first and 'depid="1" deps="0"' in second
    text = text.replace(second, second.replace('depid="1"', 'depid="0"'))
    with pytest.raises(ProofError, match="without waiting"):
        verify(read_msccl(text, "x.xml"))


def test_a_wrong_file_is_read_and_refused_by_the_proof():
    with pytest.raises(ValueError, match="ring3"):
        verify(read_msccl(RING.replace('type="rrcs"', 'type="rcs"', 1), "x.xml"))


@pytest.mark.parametrize("old, new, message", [
    ("</algo>", "", "XML"), ('coll="allreduce"', 'coll="custom"', "<algo"),
    ('id="2"', 'id="4"', "numbered"), ('type="s"', 'type="sx"', "'sx'"),
    ('type="s"', 'type="nop"', "3 messages.*1.*channel 0.*4"),
    ('deps="-1"', 'deps="x"', "integer"),
    ('depid="-1"\n   deps="-1"', 'depid="5"\n   deps="0"', "threadblock 5"),
    ('depid="-1"\n   deps="-1"', 'depid="0"\n   deps="4"', "wait for each other"),
    ('srcbuf="i"', 'srcbuf="x"', "'x'"),
    ('coll="allreduce"', 'coll="alltoall"', "alltoall in place"),
    ('coll="allreduce"', 'coll="allgather"', "chunks")])
def test_what_cannot_be_read_is_said(old, new, message):
    with pytest.raises(ValueError, match=message):
        made = read_msccl(RING.replace(old, new, 1), "x.xml")
        verify(made)


def test_what_msccl_does_not_have_is_refused():
    with pytest.raises(ScheduleError, match="MSCCL.*bcast"):
        as_msccl(schedule("bcast", "binomial", 4))
