"""The texts of messages: a change is a decision, and edits one file.

    pytest tests/golden --update-golden

writes ``messages.txt`` anew. First an example of each error class that writes its message from
fields, then the texts with which the package and its C sources raise errors, ``{}`` for values.
Other tests check the class, the fields, and the values or one word of a text.
"""

import ast
import builtins
import inspect
import re

from golden.test_golden import HERE, TOP, compare

import hpccoll.errors.contract as contract
from hpccoll import errors
from hpccoll.errors import checks, mpi, waits
from hpccoll.errors.waits import RankStates

STOPPED = RankStates("rank 1 is stopped", ("rank 0 waits for rank 1", "rank 1 is stopped"), (1,))
STORY = {"number": 7, "title": "allreduce", "when": "12:00:00", "reason": "KeyError: 5"}
PARTIES = [contract.Party((0, 2), {"operator": "sum", "count": "4"}, ("a.py:5",)),
           contract.Party((1,), {"operator": "max", "count": "4"}, ("b.py:6",))]
EXAMPLES = [
    errors.ArgumentError("root", "7 is not a rank", "choose one of 0..3"),
    errors.ArgumentError.unknown_word("algorithm", "rign", ["ring", "bruck"]),
    errors.ArgumentError.unknown_word("algorithm", "rign", ["ring", *map(str, range(20))]),
    errors.ArgumentError.unknown_word("algorithm", "x", []),
    errors.BrokenCommunicatorError(),
    errors.BrokenCommunicatorError.from_report(2, STORY),
    errors.BrokenCommunicatorError.from_report(2, {**STORY, "missing": "rank 1 is stopped",
                                                   "lines": ["rank 0 waits"]}),
    errors.PeerLost((1,), RankStates("rank 1 was killed"), "allreduce"),
    errors.ConcurrentCallError("a.py:5", "b.py:6", "worker"),
    errors.ConcurrentCallError("a.py:5", "b.py:6", ""),
    errors.ForkedError(99),
    errors.MpiLibraryError("cannot load an MPI library", "install one"),
    errors.ProofError("is wrong", schedule="allreduce ring size=4", rank=2, round=1, step="send 3"),
    errors.ProofError("is wrong", rank=0, round=0),
    errors.CapabilityError("lanes", "shared memory", "choose another algorithm", rank=0, round=1),
    errors.CollectiveTimeout("allreduce", 2, 5, (1, 3), 300.0),
    errors.CollectiveTimeout("allreduce", 2, 0, (1,), 0.5, STOPPED),
    errors.CollectiveTimeout("barrier", 0, 0, (), 1.0),
    errors.ForeignMessage(1, 0),
    errors.ForeignMessage(-1, 0),
    errors.TuningError("t.json", "it is empty"),
    errors.GroupTimeout("allreduce, call 2 of group tp on rank 0", 0.5),
    errors.ShardError({1: ["KeyError: 5"], 0: [str(n) for n in range(20)]}, "call it again"),
    errors.FrameworkError("jax", "is not installed"),
    checks.CorruptMessage("was corrupt", 0, 1, 3, 2),
    checks.CorruptMessage("was lost", 2, 0, 7),
    checks.NonFiniteInput("reduce", "a.py:5", {1: "NaN in element 3"}),
    checks.NonFiniteInput("reduce", "", dict.fromkeys(range(20), "NaN")),
    checks.UnequalError("bits in x", [((0, 2), "digest 5"), ((1,), "digest 6")]),
    checks.UnequalError("bits in x", [((1, 3), "digest 6"), ((0, 2), "digest 5")]),
    contract.ContractError("blocking call 2", PARTIES),
    contract.ContractError("blocking call 2", PARTIES, (3, 4)),
]
OURS = {name for module in (errors, contract, checks, mpi) for name, one in vars(module).items()
        if inspect.isclass(one) and issubclass(one, BaseException)}
BUILTIN = {name for name, one in vars(builtins).items()
           if inspect.isclass(one) and issubclass(one, Exception)}
IN_C = re.compile(r'PyErr_(?:SetString|Format)\(\s*PyExc_(\w+),\s*((?:"[^"]*"\s*)+)')


def template(node):
    """The text of an expression, with ``{}`` for what is not known before it is run."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.replace("\n", "\\n")
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return "{}"


def raised():
    """Class and text of what is raised, of each place once."""
    for path in (TOP / "hpccoll").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bare = {id(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                known = name.partition(".")[0] in OURS or name in BUILTIN and id(node) in bare
                text = " | ".join(map(template, node.args))
                if known and re.search(r"\w", text):
                    yield name, text
    for path in (TOP / "hpccoll").rglob("*.[ch]"):
        for kind, text in IN_C.findall(path.read_text(encoding="utf-8")):
            yield kind, re.sub(r"%\w+", "{}", "".join(re.findall('"([^"]*)"', text)))


def messages():
    assert waits.MOST_NAMED < 20  # of the lists in the examples
    made = [f"{type(one).__name__}: {one}" for one in EXAMPLES]
    return "\n".join([*made, "", *sorted({f"{name}: {text}" for name, text in raised()}), ""])


def test_messages_are_what_they_were(request):
    compare(HERE / "messages.txt", messages(), request)


def test_every_class_that_writes_its_message_has_an_example():
    shown = {type(one) for one in EXAMPLES}
    for module in (errors, contract, checks):
        for one in vars(module).values():
            if inspect.isclass(one) and issubclass(one, errors.HpccollError) and (
                    "__init__" in vars(one)) and "super().__init__(f" in inspect.getsource(one):
                assert any(issubclass(each, one) for each in shown), one
