"""Who may know whom: the import rules of docs/design.md, held by reading every module's syntax tree."""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

RANKS = {  # a part may import parts of a lower rank, and itself
    "core": 0,
    "disk": 0,
    "sparse": 0,
    "strategies": 1,
    "train": 1,
    "wire": 1,
    "machines": 1,
    "lock": 1,
    "log": 1,
    "run_settings": 1,
    "interrupt": 1,
    "units": 1,
    "bill": 1,
    "observe": 2,
    "run_folder": 2,
    "engines": 2,
    "tasks": 2,
    "planner": 2,
    "scheduler": 2,
    "goal": 3,
    "effective_batch": 3,
    "largest_task": 3,
    "shard_count": 3,
    "report": 3,
    "run": 3,
    "run_warnings": 3,
    "user_observers": 3,
    "past": 3,
    "recipe": 4,
    "short_lives": 4,
    "training": 5,
    "summaries": 0,
    "completing": 7,
    "given_files": 7,
    "options": 8,
    "run_names": 7,
    "api": 6,
    "testing": 6,
    "settings": 6,
    "console": 5,
    "stdio": 6,
    "estimating": 7,
    "listed": 7,
    "watch": 7,
    "asked": 8,
    "cli": 9,
    "": 10,  # oddlot/__init__.py and __main__.py
}
WAITING = (
    *("asyncio", "concurrent", "multiprocessing", "sched", "select", "selectors", "socket", "subprocess"),
    *("threading", "time", "torch.distributed", "torch.multiprocessing"),
)
MAY_WAIT = {
    "oddlot.interrupt": {"threading"},  # it asks in which thread it is
    "oddlot.sparse.threads": {"concurrent.futures"},  # a kernel's parts
    "oddlot.sparse.topk": {"threading"},  # one of several threads that ask makes clusters
    "oddlot.train.saver": {
        "concurrent.futures",
        "threading.Thread",
        "time.monotonic",
    },  # its writer is a thread
    "oddlot.train.storage": {"concurrent.futures"},  # checksums are computed beside the writing
    "oddlot.console": {"time.monotonic"},  # when a run will end is said in the user's time
    "oddlot.watch": {"time"},  # it is a program beside the run
}
# Of the modules random and numpy.random only these do not draw from a state that the whole process shares.
# A learner seeds that state before each task, for the user's own code.
STREAMS = {
    "random": {"Random", "seed", "getstate", "setstate"},
    "numpy.random": {"Generator", "PCG64", "SeedSequence", "default_rng", "seed", "get_state", "set_state"},
}
SEEDED = {
    "random.Random",
    "random.seed",
    "numpy.random.default_rng",
    "numpy.random.seed",
    "torch.manual_seed",
}


def faults(module: str, source: str) -> list[str]:
    """A sentence for each import and each use of chance in the module that breaks a rule."""
    tree = ast.parse(source)
    broken = [
        f"{module}, line {line}: imports {name}, but {rule}"
        for line, name in imports(tree)
        for rule in rules_broken(module, name)
    ]
    return broken + [f"{module}, line {line}: {rule}" for line, rule in shared_chance(tree)]


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every import anywhere in the module; `from a import b` as `a.b`, relative ones with their dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def rules_broken(module: str, name: str) -> Iterator[str]:
    part = part_of(module)
    if name.startswith("."):
        yield "imports are absolute"
    elif name.partition(".")[0] == "oddlot":
        yield from ours_broken(module, name)
    else:
        yield from foreign_broken(module, part, name)


def ours_broken(module: str, name: str) -> Iterator[str]:
    part, other = part_of(module), part_of(name)
    if (part, name) == ("cli", "oddlot.__version__"):
        return
    if part == "sparse":
        if other != part:
            yield "sparse knows nothing of ours"
    elif part == other:
        siblings = part == "strategies" and module != "oddlot.strategies"
        if siblings and not within(name, [module]):
            yield "strategies do not know each other: composition goes through arguments"
    elif part == "wire" and not within(name, ["oddlot.core.errors", "oddlot.core.warned"]):
        yield "wire knows of ours only core.errors and core.warned: a codec sees flat memory, nothing else"
    elif part == "scheduler" and other != "core":
        yield "scheduler knows only core"
    elif part == "engines" and other == "strategies":
        yield "engines know strategies only by their protocol"
    elif (
        not (part == "planner" and within(name, ["oddlot.engines.simulator"])) and RANKS[other] >= RANKS[part]
    ):
        yield f"{part} may not know {other or 'the package itself'}: the arrows point from cli to core"


def foreign_broken(module: str, part: str, name: str) -> Iterator[str]:
    pure = part in {"core", "strategies", "scheduler"}
    if pure and name.partition(".")[0] not in sys.stdlib_module_names:
        yield f"{part} needs the standard library alone"
    if pure and within(name, ["os", "secrets", "uuid"]):
        yield f"{part} asks nothing of the machine it runs on"
    if within(name, ["ray"]) and not module.startswith("oddlot.engines.ray"):
        yield "only engines/ray*.py know Ray"
    if part != "engines" and within(name, WAITING) and not within(name, MAY_WAIT.get(module, ())):
        yield "only engines read clocks, open pipes, start processes or wait"
    if within(name, ["signal"]) and part not in {"engines", "interrupt", "asked"}:
        yield "only engines, interrupt and asked hear signals"


def shared_chance(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Draws from a state that the whole process shares, and streams that are made while importing."""
    origins = {
        alias.asname or alias.name: f"{getattr(node, 'module', None)}.{alias.name}".removeprefix("None.")
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    at_import = set(run_at_import(tree.body))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        first, _, rest = ast.unparse(call.func).partition(".")
        name = ".".join(filter(None, (origins.get(first, first), rest)))
        known = STREAMS.get(name.rpartition(".")[0])
        if known is not None and first in origins and name.rpartition(".")[2] not in known:
            yield (
                call.lineno,
                f"{name} draws from a state that the whole process shares: use a stream of its own",
            )
        if name in SEEDED and call in at_import:
            yield call.lineno, f"{name} is called while importing: a stream belongs to a run, not to a module"


def run_at_import(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            yield from run_at_import(ast.iter_child_nodes(node))


def part_of(name: str) -> str:
    """`core` of `oddlot.core.words`; the empty text for the package itself and what it exports."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANKS else ""


def within(name: str, roots: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{root}.") for root in roots)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=module_name)
def test_module_keeps_the_import_rules(path: Path) -> None:
    broken = faults(module_name(path), path.read_text(encoding="utf-8"))
    assert not broken, "\n" + "\n".join(broken)


def test_every_part_has_a_rank() -> None:
    parts = {path.stem for path in (SOURCE / "oddlot").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert parts - {"__init__", "__main__", "__pycache__"} <= set(RANKS), "give the new part its rank"


@pytest.mark.parametrize(
    ("module", "source", "rule"),
    [
        ("core.words", "import torch", "the standard library alone"),
        ("strategies.groups", "from numpy import array", "the standard library alone"),
        ("core.words", "import os.path", "asks nothing of the machine"),
        ("core.words", "def f():\n    import time", "line 2: imports time, but only engines read clocks"),
        ("scheduler.fair", "import asyncio", "only engines read clocks"),
        ("train.store", "import threading", "only engines read clocks"),
        ("train.checkpoint", "import time", "only engines read clocks"),
        ("api", "from torch.multiprocessing import Queue", "only engines read clocks"),
        ("log", "import signal", "hear signals"),
        ("engines.local", "import ray", "only engines/ray*.py know Ray"),
        ("api", "from ray.util import state", "only engines/ray*.py know Ray"),
        ("core.words", "from oddlot.train import store", "core may not know train"),
        ("train.store", "from oddlot.engines.host import Host", "train may not know engines"),
        ("train.store", "import oddlot.wire.framing", "train may not know wire"),
        ("train.store", "from oddlot import fit", "train may not know the package itself"),
        ("tasks.digits", "from oddlot import api", "tasks may not know api"),
        ("engines.local", "from oddlot.tasks import digits", "engines may not know tasks"),
        ("engines.host", "from oddlot.strategies.fastest_k import FastestK", "only by their protocol"),
        ("api", "from oddlot.cli import main", "api may not know cli"),
        ("wire.plain", "from oddlot.train.layout import Layout", "only core.errors and core.warned"),
        ("wire.plain", "from oddlot.core.words import Task", "only core.errors and core.warned"),
        ("strategies.groups", "from oddlot.strategies.fastest_k import FastestK", "do not know each other"),
        ("sparse.layer", "from oddlot.core.errors import UsageError", "sparse knows nothing of ours"),
        ("scheduler.fair", "from oddlot.machines.machine import Machine", "scheduler knows only core"),
        ("planner.search", "from oddlot.engines.local import Local", "planner may not know engines"),
        ("core.words", "from . import errors", "imports are absolute"),
        (
            "machines.delays",
            "import random\ndef f():\n    random.shuffle([])",
            "line 3: random.shuffle draws",
        ),
        ("machines.delays", "from random import random as draw\ndraw()", "random.random draws"),
        ("train.data", "import numpy as np\nnp.random.rand(1)", "numpy.random.rand draws"),
        (
            "train.data",
            "from random import Random\nSTREAM = Random(1)",
            "line 2: random.Random is called while",
        ),
        (
            "train.data",
            "import torch\nclass A:\n    torch.manual_seed(1)",
            "torch.manual_seed is called while",
        ),
    ],
)
def test_each_rule_can_be_broken(module: str, source: str, rule: str) -> None:
    (broken,) = faults(f"oddlot.{module}", source)
    assert rule in broken


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("core.words", "from oddlot.core.errors import UsageError\nfrom random import Random"),
        ("strategies", "from oddlot.strategies.fastest_k import FastestK"),
        ("train.saver", "import os, concurrent.futures"),
        ("wire.plain", "import torch\nfrom oddlot.core.errors import UsageError"),
        ("engines.local", "import time, socket, signal\nfrom oddlot.train.store import Store"),
        ("engines.ray", "import ray"),
        ("planner.search", "from oddlot.engines.simulator import Simulated"),
        ("tasks.extreme", "from oddlot.sparse import SlideLinear"),
        ("asked", "import signal\nfrom oddlot import api\nfrom oddlot.machines.read_fleet import read_fleet"),
        (
            "train.data",
            "import torch\nfrom random import Random\ndef f():\n    torch.manual_seed(1)\n    Random(2)",
        ),
        ("train.data", "import numpy as np\ndef f(rng):\n    rng.random()\n    np.random.seed(1)"),
    ],
)
def test_what_is_allowed_is_not_refused(module: str, source: str) -> None:
    assert not faults(f"oddlot.{module}", source)
