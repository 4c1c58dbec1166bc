"""Expansion of ~ at the start of paths, without a shell."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oddlot.checkpoint.storage import Storage
from oddlot.cli.app import report, xmc_generate
from oddlot.config.job_file import JobFile
from oddlot.core.support.errors import UsageError
from oddlot.history.run_folder import RunFolder
from oddlot.machines.text_files import checked_path
from oddlot.sparse import saving
from oddlot.sparse.datasets.text_files import read_xmc
from oddlot.workloads.data_folders import roots
from oddlot.workloads.extreme_classification import xmc
from oddlot.workloads.formats.decoded_cache import cache_folder
from oddlot.workloads.registry import script_given


def page() -> str:
    """Return the path in the error of `report --html` for an existing folder."""
    Path("~/there").expanduser().mkdir()
    with pytest.raises(UsageError) as rejection:
        report(["run"], html="~/there", as_json=False)
    return str(rejection.value.fields["path"])


def generated() -> None:
    """Generate a dataset and read it."""
    xmc_generate("~/there", 8, 4, 10, 5, nonzeros=2.0, labels_each=1.0)
    xmc("~/there")
    read_xmc("~/there/train.txt.gz")


def classifier() -> None:
    saving.write("~/there", {}, {})
    saving.read("~/there")


def script() -> str:
    Path("~/there").expanduser().mkdir()
    Path("~/there/job.py").expanduser().touch()
    found = script_given("~/there/job.py")
    assert found is not None
    return str(found).rpartition(" ")[2]


def job_file() -> Path | None:
    Path("~/there").expanduser().mkdir()
    Path("~/there/job.toml").expanduser().write_text('[workload]\nname = "digits"\n')
    path = JobFile.read("~/there/job.toml").source.path
    return path and path.parent


@pytest.mark.parametrize(
    "place",
    [
        lambda: RunFolder("~/there").path,
        lambda: RunFolder("run", "~/there").given_checkpoints,
        lambda: Storage("file://~/there").write("file", [b"1"]),
        lambda: checked_path("~/there"),
        lambda: roots("~")[0] / "there",
        cache_folder,
        page,
        generated,
        classifier,
        script,
        job_file,
    ],
    ids=lambda place: place.__code__.co_names[0] if place.__name__ == "<lambda>" else place.__name__,
)
def test_tilde_expands_to_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[[], object]
) -> None:
    """The function returns the expanded path or creates it."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ODDLOT_CACHE", "~/there")
    found = place()
    assert (
        str(found) == str(tmp_path / "there")
        if isinstance(found, str | Path)
        else (tmp_path / "there").exists()
    )
