"""Programs of positions, written for the ranks at these positions."""


from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.passes import relabel_ranks
from hpccoll.ir.schedule import RIGHT, Program, at, copy, recv, reduce, send


def test_relabelled():
    program = Program(((send(1, at(OUT, 0, 3)), recv(2, at("tmp", 0), reduce=RIGHT)),
                       (copy(at(OUT, 0, 2), at("tmp", 0, 2)), reduce(at(OUT, 2), at(IN, 0)))),
                      (2, 0))
    order = (2, 0, 1)
    made = relabel_ranks(program, order, order.__getitem__, {OUT})
    assert made == Program(
        ((send(0, at(OUT, 2), at(OUT, 0, 2)), recv(1, at("tmp", 0), reduce=RIGHT)),
         (copy(at(OUT, 2), at("tmp", 0)), copy(at(OUT, 0), at("tmp", 1)),
          reduce(at(OUT, 1), at(IN, 0)))), (1, 2))
    peers = relabel_ranks(program, order)
    assert peers.scratch == (2, 0) and peers.rounds[1] == program.rounds[1]
    assert peers.rounds[0][0] == send(0, at(OUT, 0, 3))
