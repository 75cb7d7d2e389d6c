"""What a type checker and an editor know of hpccoll, seen from a program of a user's."""

import ast
import os
import re
import subprocess
import sys

import pytest
from launch import ROOT

pytest.importorskip("mypy")

PROGRAM = """
import numpy as np
from mpi4py import MPI
import hpccoll

comm = hpccoll.Comm(MPI.COMM_WORLD, layout="2x2", determinism="run")
x = np.ones(4)
reveal_type(comm)                                          # hpccoll.comm.communicator.Comm
reveal_type(comm.Allreduce)                                # mpi4py.typing.SupportsBuffer
reveal_type(comm.Iallreduce(x, x))                         # mpi4py.MPI.Request
reveal_type(comm.Allreduce_init(x, x))                     # mpi4py.MPI.Prequest
reveal_type(comm.Split(0))                                 # hpccoll.comm.communicator.Comm
reveal_type(comm.Create_cart([2, 2]))                      # hpccoll.comm.communicator.Cart
reveal_type(comm.empty(3))                                 # numpy.ndarray
reveal_type(comm.zeros(3, "f4"))                           # numpy.ndarray
reveal_type(comm.empty(3, xp=np))                          # "Any"
reveal_type(comm.zeros(3, "f4", xp=np))                    # "Any"
reveal_type(comm.layout)                                   # hpccoll.ir.topology.Topology
reveal_type(hpccoll.schedule("allreduce", "ring", 4))      # hpccoll.ir.schedule.Schedule
reveal_type(hpccoll.algorithm_names())                     # dict[str

comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
comm.Allreduce([x, MPI.DOUBLE], (x, 4))
comm.Alltoallv([x, (1, 1)], [x, ((1, 1), (0, 2)), MPI.DOUBLE])
comm.Gather(x, None, root=1)
comm.allreduce(1, op=max)
with comm.using(allreduce="ring", segment_bytes=1 << 18):
    comm.Bcast(x)

comm.Allreduce(x, x, op="sum")                             # error: "str"; expected "Op"
comm.Allreduce(3, x)                                       # error: "int"; expected
comm.Bcast(x, root="0")                                    # error: "str"; expected "int"
comm.Reduce(x)                                             # error: Missing positional argument
comm.Alreduce(x, x)                                        # error: has no attribute "Alreduce"
hpccoll.schedul("allreduce", "ring", 4)                    # error: has no attribute "schedul"
hpccoll.Comm(MPI.COMM_WORLD, layot="2x2")                  # error: Unexpected keyword argument
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_program_is_checked(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    # As installed, which is what an editor sees: this folder is not on the path. From Python 3.12
    # on the types know what a buffer is.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-version=3.12", "--no-error-summary",
         "--config-file=", "--follow-imports=silent", f"--cache-dir={tmp_path}/cache",
         "program.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items()
             if name not in ("MYPYPATH", "PYTHONPATH")})
    said = {}
    for number, line in re.findall(r"^program\.py:(\d+): (.*)$", done.stdout, re.MULTILINE):
        said[int(number)] = said.get(int(number), "") + line
    for number, line in enumerate(PROGRAM.splitlines(), 1):
        wanted = line.partition("  # ")[2]
        if not wanted:
            assert number not in said, said
        else:
            assert wanted.removeprefix("error: ") in said.get(number, "nothing"), (line, said)
            assert ("error: " in said[number]) == wanted.startswith("error: ")


@pytest.mark.parametrize("package", ["", "training", "training/shard", "torch"])
def test_names_that_are_loaded_on_demand_are_there_for_checkers(package):
    text = (ROOT / "hpccoll" / package / "__init__.py").read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            if name in ("PLACES", "__all__"):
                for each in ast.literal_eval(node.value):
                    assert re.search(rf"^(?:    )?from \S+ import .*\b{each}\b", text,
                                     re.MULTILINE), each
