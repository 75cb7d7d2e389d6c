"""What a program shows of a mistake, however it is started: ``tests/golden/mistakes.txt``.

    pytest tests/doc/test_mistakes.py --update-golden

The text of one rank: the others print the same, or nothing under ``hpccoll run``.
"""

import re
import sys
from importlib.metadata import distributions

import pytest
from golden.test_golden import HERE, compare

#: Title of each mistake, the number of ranks that it needs, and its line.
MISTAKES = {
    "another count": (2, "comm.Allreduce(x[:99 + comm.rank], y[:99 + comm.rank])"),
    "another collective": (2, "comm.Bcast(x) if comm.rank else comm.Allreduce(x, y)"),
    "another operator": (2, "comm.Allreduce(x, y, MPI.MAX if comm.rank else MPI.MIN)"),
    "a root that does not exist": (1, "comm.Bcast(x, root=7)"),
    "a misspelt algorithm": (1, "comm.using(allreduce='rign')"),
    "an array with gaps": (1, "comm.Allreduce(x[::2], y[::2])"),
    "a short array": (1, "comm.Allreduce(x, y[:50])"),
    "arrays that overlap": (1, "comm.Allreduce(x[:50], x[25:75])"),
    "a function as operator": (1, "comm.Allreduce(x, y, op=max)"),
    "texts": (1, "comm.Allreduce(np.array(['a']), np.array(['b']))"),
    "a communicator that was freed": (1, "comm.Free() or comm.Allreduce(x, y)"),
    "a malformed variable": (1, "os.environ['HPCCOLL_TIMEOUT'] = 'abc'; hpccoll.Comm(comm)"),
}
BEFORE = """\
import os, numpy as np
from mpi4py import MPI
import hpccoll
comm = hpccoll.Comm(MPI.COMM_WORLD.Dup())
comm.layout
x, y = np.ones(100), np.empty(100)
"""
RUN = {"python": (sys.executable,), "hpccoll run": (sys.executable, "-m", "hpccoll", "run")}


def shown(output, folder):
    """The texts of the ranks, without what the launcher adds and Python's marks."""
    lines = [line for line in output.replace(f"{folder}/", "").splitlines()
             if line.strip("^~ ") and not line.startswith(("Abort(", "MPICH: "))]
    # Which algorithm would have run depends on the machine, and a rank that has left has no line.
    text = re.sub(r"^(  rank.*), \w+(?: k=\d+)?(?: at x.py:7)?\)$", r"\1, ALGORITHM)",
                  "\n".join(lines), flags=re.MULTILINE)
    ranks = text.split("Traceback")[1:]
    return {f"Traceback{text.rstrip()}" for text in ranks}, len(ranks)


@pytest.mark.skipif(all(each.name != "mpich" for each in distributions()),
                    reason="the texts are those of MPICH")
def test_mistakes_are_shown_as_in_the_file(job, capture, tmp_path, request):
    parts = []
    for title, (ranks, line) in MISTAKES.items():
        (tmp_path / "x.py").write_text(f"{BEFORE}{line}\n")
        found = {}
        for way, words in RUN.items():
            command = *words, tmp_path / "x.py"
            status, output = job(ranks, *command) if ranks > 1 else capture(*command)
            texts, count = shown(output, tmp_path)
            assert status == 1 and len(texts) == 1, output
            assert count == ranks or way == "hpccoll run", output
            found[way], = texts
        assert found["python"] == found["hpccoll run"]
        assert not re.search(r"/hpccoll/|direct cause|During handling", found["python"])
        parts.append(f"# {title}\n{found['python']}\n")
    compare(HERE / "mistakes.txt", "\n".join(parts), request)
