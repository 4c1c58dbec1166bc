"""Imports of every module follow the order of packages in docs/design.md. Syntax trees are checked."""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

ORDER = (  # a package may import itself and the packages above it
    {"core"},
    {"machines", "sparse"},
    {"model", "data", "wire", "timing", "strategies"},
    {"train", "checkpoint"},
    {"engines"},
    {"history", "faults"},
    {"workloads", "report"},
    {"run"},
    {"integrations"},
    {"planner", "testing", "demo"},
    {"config"},
    {"queue"},
    {"cli"},
)
RANKS = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms} | {"": len(ORDER)}
"""Position of each package in the order. The empty name is for oddlot/__init__.py and __main__.py."""
ONLY = {
    "wire": [
        "oddlot.core.support.errors",
        "oddlot.core.support.user_warnings",
        "oddlot.core.support.user_code",
    ],
}
"""Modules of oddlot that a package may import, if it may import only some."""
MAY_IMPORT_SPARSE = {"model", "train", "workloads", "cli", ""}
EXPORTS = {"callbacks", "codecs", "events", "commands", "lr_schedules", "merging"}
"""Modules that only export names of packages."""
WAITING = (
    *("asyncio", "concurrent", "multiprocessing", "sched", "select", "selectors", "socket", "subprocess"),
    *("threading", "time", "torch.distributed", "torch.multiprocessing"),
)
HEARS_SIGNALS = {
    "oddlot.run.signals",
    "oddlot.cli.run_command",
    "oddlot.cli.estimate_command",
    "oddlot.cli.plan_command",
    "oddlot.cli.preemption_notice",
    "oddlot.faults.injector",
    "oddlot.queue.server",
}
EXTRA_OF_QUEUE = ("lightgbm", "rapidfuzz", "fastapi", "uvicorn")
MAY_WAIT = {
    "oddlot.cli.preemption_notice": {"time"},  # runs in a separate process
    "oddlot.testing.engine_check": {"time.sleep"},  # gives a training step a known duration
    "oddlot.run.signals": {"threading"},  # checks whether it runs in the main thread
    "oddlot.sparse.threads": {"concurrent.futures"},  # runs parts of a kernel
    "oddlot.sparse.topk": {"threading"},  # only one of several threads builds clusters
    "oddlot.checkpoint.background_writer": {
        "concurrent.futures",
        "threading.Thread",
        "time.monotonic",
    },  # writes in a thread
    "oddlot.checkpoint.best_writer": {"concurrent.futures", "threading"},  # writes in a thread
    "oddlot.checkpoint.storage": {"concurrent.futures"},  # computes checksums during writes
    "oddlot.report.progress_line": {"time.monotonic"},  # predicts the end of a run in wall time
    "oddlot.report.progress_text": {"time.monotonic"},  # prints a line every few seconds
    "oddlot.planner.profile": {"time"},  # measures seconds
    "oddlot.cli.watch": {"time"},  # runs in a separate process
    "oddlot.queue.server": set(WAITING),  # a server and the processes that it starts
    "oddlot.queue.replay": {"time.perf_counter"},  # measures how long a replay takes
}
# Names of the modules random and numpy.random that do not draw from the global state of the process.
# A learner seeds the global state before each task, for the user's code.
STREAMS = {
    "random": {"Random", "seed", "getstate", "setstate"},
    "numpy.random": {
        *("Generator", "PCG64", "MT19937", "SeedSequence", "default_rng"),
        *("seed", "get_state", "set_state", "get_bit_generator"),
    },
}
SEEDED = {
    "random.Random",
    "random.seed",
    "numpy.random.default_rng",
    "numpy.random.seed",
    "torch.manual_seed",
}


def faults(module: str, source: str) -> list[str]:
    """Return a sentence for each import and each random draw of the module that breaks a rule."""
    tree = ast.parse(source)
    broken = [
        f"{module}, line {line}: imports {name}, but {rule}"
        for line, name in imports(tree)
        for rule in rules_broken(module, name)
    ]
    return broken + [f"{module}, line {line}: {rule}" for line, rule in shared_chance(tree)]


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and name of every import of the module.

    The name of `from a import b` is `a.b`. Names of relative imports start with dots.
    """
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
    if part == "sparse":
        yield from () if other == part else ["sparse knows nothing of ours"]
    elif part == other:
        if part == "strategies" and is_strategy(module) and is_strategy(name) and not within(name, [module]):
            yield "strategies do not know each other: composition goes through arguments"
    elif other == "sparse":
        yield from () if part in MAY_IMPORT_SPARSE else ["only model, train, workloads and cli know sparse"]
    elif part in ONLY and not within(name, ONLY[part]):
        yield f"{part} knows of ours only {' and '.join(one.removeprefix('oddlot.') for one in ONLY[part])}"
    elif part == "engines" and other == "strategies":
        yield "engines know strategies only by their contract"
    elif RANKS[other] >= RANKS[part]:
        yield f"{part} may not know {other or 'the package itself'}: see the order of rooms"


def is_strategy(name: str) -> bool:
    """Return whether a name is a strategy's module, such as `oddlot.strategies.fastest_k`, or in such a module."""
    parts = name.split(".")
    return len(parts) > 2 and parts[2] not in {"support", "registry", "shipped"}


def foreign_broken(module: str, part: str, name: str) -> Iterator[str]:
    pure = part in {"core", "strategies"} or within(module, ["oddlot.queue.core"])
    if pure and name.partition(".")[0] not in sys.stdlib_module_names:
        yield f"{part} needs the standard library alone"
    if pure and within(name, ["os", "secrets", "uuid"]):
        yield f"{part} asks nothing of the machine it runs on"
    if within(name, ["ray"]) and not within(module, ["oddlot.engines.ray"]):
        yield "only engines/ray knows Ray"
    allowed = [name for known, names in MAY_WAIT.items() if within(module, [known]) for name in names]
    if part != "engines" and within(name, WAITING) and not within(name, allowed):
        yield "only engines read clocks, open pipes, start processes or wait"
    if within(name, EXTRA_OF_QUEUE) and part != "queue":
        yield "only queue knows the packages of its extra"
    if within(name, ["signal"]) and part != "engines" and not within(module, HEARS_SIGNALS):
        yield "only engines and HEARS_SIGNALS hear signals"


def shared_chance(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield draws from the global random state, and random generators that are created during an import."""
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
    """Return the package of a name: `core` for `oddlot.core.tasks`, and "" for oddlot itself and its exports."""
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


def test_every_package_has_a_rank() -> None:
    rooms = {path.stem for path in (SOURCE / "oddlot").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__main__", "__pycache__"} - EXPORTS <= set(RANKS), (
        "give the new room its rank"
    )


def imported_modules() -> dict[str, set[str]]:
    """Return the imported modules of each module in oddlot and in the benchmarks, including late imports."""
    paths = {module_name(path): path for path in SOURCE.rglob("*.py")}
    for path in (ROOT / "benchmarks").rglob("*.py"):
        paths[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = {name for _, name in imports(ast.parse(path.read_text(encoding="utf-8")))}
        modules = {name if name in paths else name.rpartition(".")[0] for name in names}
        found[module] = (modules & paths.keys()) - {module}
    return found


def cycle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the modules of an import cycle, or an empty list without a cycle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    graph = {module: names - {"oddlot"} for module, names in imported_modules().items()}
    assert not cycle_in(graph)
    assert cycle_in({**graph, "oddlot.core.support.errors": {"oddlot.core.conductor"}})


@pytest.mark.parametrize(
    ("module", "source", "rule"),
    [
        ("core.tasks", "import torch", "the standard library alone"),
        ("strategies.groups", "from numpy import array", "the standard library alone"),
        ("core.tasks", "import os.path", "asks nothing of the machine"),
        ("queue.core.scheduler", "import numpy", "the standard library alone"),
        ("planner.plan", "import lightgbm", "only queue knows"),
        ("core.tasks", "def f():\n    import time", "line 2: imports time, but only engines read clocks"),
        ("model.weight_store", "import threading", "only engines read clocks"),
        ("checkpoint.format", "import time", "only engines read clocks"),
        ("run.fit", "from torch.multiprocessing import Queue", "only engines read clocks"),
        ("history.log", "import signal", "hear signals"),
        ("engines.local", "import ray", "only engines/ray knows Ray"),
        ("run.fit", "from ray.util import state", "only engines/ray knows Ray"),
        ("core.tasks", "from oddlot.train import store", "core may not know train"),
        ("model.weight_store", "from oddlot.engines.host import Host", "model may not know engines"),
        ("model.weight_store", "import oddlot.wire.framing", "model may not know wire"),
        ("model.weight_store", "from oddlot import fit", "model may not know the package itself"),
        ("workloads.digits", "from oddlot.run import fit", "workloads may not know run"),
        ("engines.local", "from oddlot.workloads import digits", "engines may not know workloads"),
        ("engines.host", "from oddlot.strategies.fastest_k import FastestK", "only by their contract"),
        ("run.fit", "from oddlot.cli.app import main", "run may not know cli"),
        (
            "wire.plain",
            "from oddlot.model.flat_buffer import Layout",
            "only core.support.errors and core.support.user_warnings",
        ),
        (
            "wire.plain",
            "from oddlot.core.tasks import Task",
            "only core.support.errors and core.support.user_warnings",
        ),
        ("strategies.groups", "from oddlot.strategies.fastest_k import FastestK", "do not know each other"),
        ("sparse.layer", "from oddlot.core.support.errors import UsageError", "sparse knows nothing of ours"),
        ("machines.market", "from oddlot.faults.plan import Chaos", "machines may not know faults"),
        ("report.run_report", "from oddlot.sparse import SlideLinear", "know sparse"),
        ("core.tasks", "from . import errors", "imports are absolute"),
        (
            "machines.delay_models",
            "import random\ndef f():\n    random.shuffle([])",
            "line 3: random.shuffle draws",
        ),
        ("machines.delay_models", "from random import random as draw\ndraw()", "random.random draws"),
        ("data.batches", "import numpy as np\nnp.random.rand(1)", "numpy.random.rand draws"),
        (
            "data.batches",
            "from random import Random\nSTREAM = Random(1)",
            "line 2: random.Random is called while",
        ),
        (
            "data.batches",
            "import torch\nclass A:\n    torch.manual_seed(1)",
            "torch.manual_seed is called while",
        ),
    ],
)
def test_broken_import_rule_is_reported(module: str, source: str, rule: str) -> None:
    (broken,) = faults(f"oddlot.{module}", source)
    assert rule in broken


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("core.tasks", "from oddlot.core.support.errors import UsageError\nfrom random import Random"),
        ("strategies.shipped", "from oddlot.strategies.fastest_k import FastestK"),
        ("checkpoint.background_writer", "import os, concurrent.futures"),
        ("wire.plain", "import torch\nfrom oddlot.core.support.errors import UsageError"),
        ("engines.local", "import time, socket, signal\nfrom oddlot.model.weight_store import Store"),
        ("engines.ray.engine", "import ray"),
        ("planner.search", "from oddlot.engines.simulated.engine import Simulated"),
        ("workloads.extreme", "from oddlot.sparse import SlideLinear"),
        (
            "cli.run_command",
            "import signal\nfrom oddlot.run import fit\nfrom oddlot.config.fleet_file import read_fleet",
        ),
        (
            "data.batches",
            "import torch\nfrom random import Random\ndef f():\n    torch.manual_seed(1)\n    Random(2)",
        ),
        ("data.batches", "import numpy as np\ndef f(rng):\n    rng.random()\n    np.random.seed(1)"),
    ],
)
def test_allowed_import_is_accepted(module: str, source: str) -> None:
    assert not faults(f"oddlot.{module}", source)


def listeners(source: str) -> bool:
    """Return whether a module opens a port."""
    names = {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    return bool(names & {"create_server", "listen", "start_server", "serve_forever", "HTTPServer"})


def test_security_lists_each_module_that_opens_a_port() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    paths = [path for path in SOURCE.rglob("*.py") if listeners(path.read_text(encoding="utf-8"))]
    assert paths, "peers of a mesh listen"
    missing = [path for path in paths if str(path.relative_to(SOURCE / "oddlot")) not in text]
    assert not missing
