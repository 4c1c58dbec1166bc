"""`oddlot xmc-generate`: generated datasets can be read and learned."""

from pathlib import Path
from typing import Any

import pytest

from oddlot.sparse import SlideClassifier
from oddlot.sparse.csr import Csr
from oddlot.sparse.datasets.text_files import read_xmc, write_xmc
from tests.command import Oddlot
from tests.sparse.layers import memory_of
from tests.transcripts import transcribe

SIZES = {"train": 1000, "test": 300, "features": 600, "labels": 200, "nonzeros": 30, "labels-each": 2}
SMALL = [part for name, size in SIZES.items() for part in (f"--{name}", str(size))]
pytestmark = pytest.mark.usefixtures("one_thread")


def test_generated_dataset_is_written_and_learned(oddlot: Oddlot) -> None:
    done = oddlot("xmc-generate", "xmc", *SMALL)
    assert done.code == 0
    transcribe(done.out)
    x, y = read_xmc("xmc/train.txt.gz")
    assert (x.shape, y.shape) == ((1000, 600), (1000, 200))
    found = SlideClassifier(hidden=32, batch=32, epochs=8).fit(x, y)
    assert found.score(x, y) > 0.8
    assert found.score(*read_xmc("xmc/test.txt.gz")) > 0.3


def test_force_overwrites_a_dataset(oddlot: Oddlot) -> None:
    assert oddlot("xmc-generate", "xmc", *SMALL).code == 0
    before = Path("xmc/train.txt.gz").read_bytes()
    oddlot.rejects("file_exists", "xmc-generate", "xmc", *SMALL, "--seed", "1", path="xmc/train.txt.gz")
    assert Path("xmc/train.txt.gz").read_bytes() == before
    Path("xmc/test.txt").write_text("of another set")
    assert oddlot("xmc-generate", "xmc", *SMALL, "--seed", "1", "--force").code == 0
    assert sorted(path.name for path in Path("xmc").iterdir()) == ["test.txt.gz", "train.txt.gz"]
    assert Path("xmc/train.txt.gz").read_bytes() != before


def test_interrupted_command_does_not_mix_two_datasets(
    oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed between the two files leaves only one."""
    assert oddlot("xmc-generate", "xmc", *SMALL).code == 0

    def killed(path: Path, x: Csr, y: Csr) -> None:
        if path.name == "test.txt.gz":
            raise KeyboardInterrupt
        write_xmc(path, x, y)

    monkeypatch.setattr("oddlot.cli.xmc_command.write_xmc", killed)
    assert oddlot("xmc-generate", "xmc", *SMALL, "--seed", "1", "--force").code != 0
    assert [path.name for path in Path("xmc").iterdir()] == ["train.txt.gz"]


def test_damaged_dataset_error_names_the_file_and_no_setting(oddlot: Oddlot) -> None:
    assert oddlot("xmc-generate", "xmc", *SMALL).code == 0
    path = Path("xmc/train.txt.gz")
    path.write_bytes(path.read_bytes()[:500])
    options = "--data", "xmc", "--workers", "1", "--set", "workload.batch_size=32"
    done = oddlot.rejects("damaged_file", "train", "xmc", *options, path=str(path))
    assert "workload" not in done.err


def test_force_rejects_a_folder_instead_of_a_file(oddlot: Oddlot) -> None:
    Path("xmc/train.txt").mkdir(parents=True)
    oddlot.rejects("not_a_file", "xmc-generate", "xmc", *SMALL, "--force", path="xmc/train.txt")


def test_failed_generation_keeps_the_earlier_dataset(oddlot: Oddlot) -> None:
    assert oddlot("xmc-generate", "xmc", *SMALL).code == 0
    before = {path: path.read_bytes() for path in Path("xmc").iterdir()}
    assert oddlot("xmc-generate", "xmc", *SMALL, "--labels", "2000000000", "--force").code == 2
    assert {path: path.read_bytes() for path in Path("xmc").iterdir()} == before


@pytest.mark.parametrize(
    ("option", "value", "code", "fields"),
    [
        (
            "--labels",
            "2000000000",
            "not_enough_memory",
            {"what": "a set of 2,000,000,000 labels", "needs": 8e10},
        ),
        ("--train", "999999999999", "not_enough_memory", {"what": "a set of 999,999,999,999 points"}),
        ("--labels-each", "150", "too_many_labels_each", {"labels_each": 150, "labels": 200}),
        ("--nonzeros", "1e9", "invalid_value", {"name": "--nonzeros", "given": 1e9}),
        ("--labels-each", "201", "invalid_value", {"name": "--labels-each", "given": 201}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_impossible_dataset_sizes_are_rejected(
    option: str, value: str, code: str, fields: dict[str, Any], oddlot: Oddlot
) -> None:
    with memory_of(1e9):
        oddlot.rejects(code, "xmc-generate", "xmc", *SMALL, option, value, **fields)


@pytest.mark.parametrize(
    ("option", "value"), [("--seed", "9" * 14), ("--features", "9" * 14), ("--nonzeros", "nan")]
)
def test_out_of_range_numbers_are_rejected(option: str, value: str, oddlot: Oddlot) -> None:
    oddlot.rejects("invalid_value", "xmc-generate", "xmc", *SMALL, option, value, flag=f"{option} {value}")


def test_file_instead_of_a_folder_is_rejected(oddlot: Oddlot) -> None:
    Path("xmc").write_text("a file")
    oddlot.rejects("not_a_folder", "xmc-generate", "xmc", *SMALL, path="xmc")
