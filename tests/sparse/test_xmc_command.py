"""`oddlot xmc-generate`: what it writes can be read and learnt."""

from pathlib import Path

from oddlot.sparse import SlideClassifier
from oddlot.sparse.xmc.reading import read_xmc
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


def test_a_folder_that_cannot_be(oddlot: Oddlot) -> None:
    Path("xmc").write_text("a file")
    done = oddlot("xmc-generate", "xmc", *SMALL)
    assert (done.code, done.err) == (2, "oddlot: xmc/train.txt.gz cannot be written: File exists\n")
