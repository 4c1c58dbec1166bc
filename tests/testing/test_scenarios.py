"""Scenario files: their output, and errors for invalid lines."""

from pathlib import Path

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.testing import check_story, run_story
from tests.toys import Timed
from tests.transcripts import raises, transcribe

STORY = """# a comment

strategy Asynchronous(samples=8)
data size=12 epochs=1
join a
> assign a:1 8 [0:0-8] v0
finish a
> step a:1*1.00
> assign a:2 4 [0:8-12] v1
"""


def test_story_output_replaces_old_output() -> None:
    bare = "\n".join(line for line in STORY.splitlines() if not line.startswith(">"))
    assert run_story(bare) == STORY
    assert run_story(STORY) == STORY
    assert run_story(STORY.replace("> step", "> nonsense")) == STORY


def test_changed_story_output_shows_the_difference(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_text(STORY.replace("a:1*1.00", "a:1*0.50"))
    with raises(AssertionError) as caught:
        check_story(path)
    assert {"-> step a:1*0.50", "+> step a:1*1.00"} < {*str(caught.value).splitlines()}
    check_story(path, rewrite=True)
    assert path.read_text() == STORY
    check_story(path)


@pytest.mark.parametrize(
    ("story", "line", "code", "given"),
    [
        ("join a", 1, "missing_strategy", None),
        ("strategy FastestJ(k=2)", 1, "unknown_name", "FastestJ"),
        ("strategy FastestK(l=2)", 1, "invalid_line", "strategy FastestK(l=2)"),
        ("strategy FastestK(k=__import__('os'))", 1, "unknown_name", "__import__"),
        ("strategy (lambda: 1)()", 1, "unknown_name", "lambda: 1"),
        ("strategy FastestK(k=1+open)", 1, "invalid_line", "strategy FastestK(k=1+open)"),
        ("strategy FastestK(**{'k': 2})", 1, "setting_without_name", None),
        ("strategy FastestK(", 1, "invalid_line", "strategy FastestK("),
        ("strategy Synchronous()\ndata sizes=4", 2, "unknown_name", "sizes"),
        ("strategy Synchronous()\ndata size=much", 2, "invalid_line", "data size=much"),
        ("strategy Synchronous()\njump a", 2, "unknown_name", "jump"),
        ("strategy Synchronous()\njoin", 2, "wrong_words", "join"),
        ("strategy Synchronous()\njoin a b", 2, "wrong_words", "join a b"),
        ("strategy Synchronous()\njoin a\nfinish a sample=4", 3, "wrong_words", "finish a sample=4"),
        ("strategy Synchronous()\njoin a\nfinish b", 3, "no_such_task", None),
        ("strategy Synchronous()\njoin a\nlate a", 3, "no_such_task", None),
        ("strategy Synchronous()\nwait alarm", 2, "nothing_to_wait_for", None),
        ("strategy Synchronous()\nevaluated loss=1", 2, "no_evaluation", None),
    ],
)
def test_invalid_story_is_rejected(story: str, line: int, code: str, given: str | None) -> None:
    with raises(UsageError, code, line=line, **({"given": given} if given else {})):
        run_story(story)


def test_strategy_error_is_shown_in_the_story() -> None:
    story = "strategy Timed(seconds=0.0)\njoin a\nwait 1\n"
    *_, last = run_story(story, {"Timed": Timed}).splitlines()
    assert last.startswith("> ProtocolError: ")
    transcribe(last)
