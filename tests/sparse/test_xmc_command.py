"""`oddlot xmc-generate`: what it writes can be read and learnt."""

from pathlib import Path

import pytest

from oddlot.sparse import SlideClassifier
from oddlot.sparse.csr import Csr
from oddlot.sparse.xmc.reading import read_xmc
from oddlot.sparse.xmc.writing import write_xmc
from tests.command import Oddlot

SMALL = (
    "--train",
    "2000",
    "--test",
    "300",
    "--features",
    "600",
    "--labels",
    "200",
    "--nonzeros",
    "30",
    "--labels-each",
    "2",
)


def test_a_set_is_written_and_learnt(oddlot: Oddlot) -> None:
    done = oddlot("xmc-generate", "xmc", *SMALL)
    assert done.code == 0
    assert done.out.startswith("xmc/train.txt.gz: 2,000 points, ")
    x, y = read_xmc("xmc/train.txt.gz")
    assert (x.shape, y.shape) == ((2000, 600), (2000, 200))
    found = SlideClassifier(hidden=32, batch=64, epochs=8).fit(x, y)
    assert found.score(*read_xmc("xmc/test.txt.gz")) > 0.4


def test_a_set_is_written_over_if_that_is_wanted(oddlot: Oddlot) -> None:
    assert oddlot("xmc-generate", "xmc", *SMALL).code == 0
    before = Path("xmc/train.txt.gz").read_bytes()
    done = oddlot("xmc-generate", "xmc", *SMALL, "--seed", "1")
    assert done.code == 2
    assert "xmc/train.txt.gz is there: choose another DIR, or --force" in done.err
    assert Path("xmc/train.txt.gz").read_bytes() == before
    Path("xmc/test.txt").write_text("of another set")
    assert oddlot("xmc-generate", "xmc", *SMALL, "--seed", "1", "--force").code == 0
    assert sorted(path.name for path in Path("xmc").iterdir()) == ["test.txt.gz", "train.txt.gz"]
    assert Path("xmc/train.txt.gz").read_bytes() != before


def test_of_two_sets_none_is_made_of_both(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed between the files leaves one of them."""
    assert oddlot("xmc-generate", "xmc", *SMALL).code == 0

    def killed(path: Path, x: Csr, y: Csr) -> None:
        if path.name == "test.txt.gz":
            raise KeyboardInterrupt
        write_xmc(path, x, y)

    monkeypatch.setattr("oddlot.sparse.xmc.writing.write_xmc", killed)
    assert oddlot("xmc-generate", "xmc", *SMALL, "--seed", "1", "--force").code != 0
    assert [path.name for path in Path("xmc").iterdir()] == ["train.txt.gz"]


def test_a_broken_set_is_named_and_no_setting_beside_it(oddlot: Oddlot) -> None:
    assert oddlot("xmc-generate", "xmc", *SMALL).code == 0
    path = Path("xmc/train.txt.gz")
    path.write_bytes(path.read_bytes()[:500])
    done = oddlot("train", "xmc", "--data", "xmc", "--workers", "1", "--set", "task_options.batch=32")
    assert done.code == 2
    assert "train.txt.gz is not a whole gzip file" in done.err
    assert "task_options.batch" not in done.err


def test_what_cannot_be_thrown_away(oddlot: Oddlot) -> None:
    Path("xmc/train.txt").mkdir(parents=True)
    done = oddlot("xmc-generate", "xmc", *SMALL, "--force")
    assert done.code == 2
    assert "xmc/train.txt cannot be thrown away: it is a folder" in done.err


def test_a_set_stays_where_there_will_be_no_other(oddlot: Oddlot) -> None:
    assert oddlot("xmc-generate", "xmc", *SMALL).code == 0
    before = {path: path.read_bytes() for path in Path("xmc").iterdir()}
    assert oddlot("xmc-generate", "xmc", *SMALL, "--labels", "2000000000", "--force").code == 2
    assert {path: path.read_bytes() for path in Path("xmc").iterdir()} == before


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--labels", "2000000000", "a set of 2,000,000,000 labels needs 80.0 GB, this machine has"),
        ("--train", "999999999999", "a set of 999,999,999,999 points needs"),
        ("--nonzeros", "1e9", "--nonzeros can be no more than --features"),
        ("--labels-each", "201", "--labels-each no more than --labels"),
        ("--seed", "99999999999999", "Invalid value for '--seed'"),
        ("--features", "99999999999999", "Invalid value for '--features'"),
    ],
)
def test_sets_that_cannot_be(option: str, value: str, told: str, oddlot: Oddlot) -> None:
    done = oddlot("xmc-generate", "xmc", *SMALL, option, value)
    assert done.code == 2
    assert told in done.err


def test_a_folder_that_cannot_be(oddlot: Oddlot) -> None:
    Path("xmc").write_text("a file")
    done = oddlot("xmc-generate", "xmc", *SMALL)
    assert (done.code, done.err) == (2, "oddlot: 'xmc' is no folder\n")
