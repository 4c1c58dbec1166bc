"""The public names, and the cost of importing them."""

import ast
import subprocess
import sys
import tomllib
from dataclasses import fields
from importlib import import_module
from inspect import signature
from pathlib import Path

import oddlot
from oddlot.strategies.registry import BY_NAME, WRAPPERS
from tests.fits import a_job
from tests.transcripts import raises

NAMES = (
    "__version__ accuracy Adam AdamW AdaptiveGossip AdaptiveK AdaptiveLoad Asynchronous BackupTasks Callback "
    "callbacks CheckpointError codecs commands Deadline Downpour ElasticAveraging estimate EventGrad events FastestK "
    "faults FederatedAveraging fit fit_stages Gossip Groups Interrupted Job JobError load Local LocalSGD lr_schedules "
    "Machine machines merging model_loss OddlotError Optimizer Plan plan PlanInterrupted ProportionalLoad Quorum Ray "
    "read_chaos read_fleet replay Run SGD Shards Simulated sparse Stage StopRun strategies Strategy Synchronous "
    "testing UsageError VCASGD"
)
ROOT = Path(__file__).parent.parent
PROBE = """\
import sys, time
before = time.perf_counter()
import oddlot
print(time.perf_counter() - before, *sorted({"torch", "numpy", "pydantic", "rich"} & set(sys.modules)))
"""


def names_for_type_checkers() -> dict[str, str]:
    """Return the names imported under `if TYPE_CHECKING`, with their modules."""
    tree = ast.parse(Path(str(oddlot.__file__)).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    found = {alias.name: str(node.module) for node in imports for alias in node.names}
    shipped = found.pop("*")
    return found | {kind.__name__: shipped for kind in (BY_NAME | WRAPPERS).values()}


def test_all_lists_exactly_the_exported_names() -> None:
    homes = names_for_type_checkers()
    assert set(oddlot.__all__) == homes.keys() | {"__version__"}
    assert len(set(oddlot.__all__)) == len(oddlot.__all__)
    for name, home in homes.items():
        assert getattr(oddlot, name) is getattr(import_module(home), name)
    assert dir(oddlot) == sorted(oddlot.__all__)


def test_public_names_are_unchanged() -> None:
    """A public name is a promise to users. Add one only for a good reason."""
    assert " ".join(sorted(oddlot.__all__, key=str.lower)) == NAMES


def test_job_signature_has_every_field() -> None:
    assert signature(oddlot.Job).parameters.keys() == {each.name for each in fields(oddlot.Job)}


def test_job_repr_omits_its_data() -> None:
    assert "_data" not in repr(a_job())


def test_missing_name_raises_attribute_error() -> None:
    with raises(AttributeError):
        oddlot.fitt  # noqa: B018


def test_every_public_name_has_a_docstring() -> None:
    assert all(getattr(oddlot, name).__doc__ for name in oddlot.__all__)


def test_import_is_fast_and_light() -> None:
    answers = [
        subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(5)
    ]
    assert all(len(answer) == 1 for answer in answers), answers
    assert min(float(seconds) for seconds, *_ in answers) < 0.15


def test_version_matches_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert oddlot.__version__ == project["version"]
