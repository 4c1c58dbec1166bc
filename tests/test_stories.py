"""Each file in tests/stories is a test. `pytest --rewrite` writes the actual output to it."""

from pathlib import Path

import pytest

from oddlot.testing import check_story
from tests.toys import Backups, Timed

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story_output_is_unchanged(path: Path, pytestconfig: pytest.Config) -> None:
    check_story(path, rewrite=pytestconfig.getoption("--rewrite"), names={"Backups": Backups, "Timed": Timed})


def test_stories_exist() -> None:
    assert STORIES
