"""Stories: what can be told, and what is said when it cannot."""

from pathlib import Path

import pytest

from oddlot.core.errors import UsageError
from oddlot.testing import check_story, run_story
from tests.toys import Timed

TOLD = """# a comment

strategy Asynchronous(samples=8)
data size=12 epochs=1
join a
> assign a:1 8 [0:0-8] v0
finish a
> step a:1*1.00
> assign a:2 4 [0:8-12] v1
"""


def test_a_story_is_told_whatever_stood_there_before() -> None:
    bare = "\n".join(line for line in TOLD.splitlines() if not line.startswith(">"))
    assert run_story(bare) == TOLD
    assert run_story(TOLD) == TOLD
    assert run_story(TOLD.replace("> step", "> nonsense")) == TOLD


def test_a_story_that_comes_out_differently_shows_the_difference(tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_text(TOLD.replace("a:1*1.00", "a:1*0.50"))
    with pytest.raises(
        AssertionError,
        match=r"story.txt comes out differently:\n(.|\n)*-> step a:1\*0.50\n\+> step a:1\*1.00",
    ):
        check_story(path)
    check_story(path, rewrite=True)
    assert path.read_text() == TOLD
    check_story(path)


@pytest.mark.parametrize(
    ("story", "sentence"),
    [
        ("join a", "line 1 of the story, `join a`: a story begins with `strategy FastestK"),
        (
            "strategy FastestJ(k=2)",
            r"nothing is called 'FastestJ' here: did you mean `FastestK`\? There are: Adam",
        ),
        ("strategy FastestK(l=2)", "unexpected keyword argument 'l'"),
        ("strategy FastestK(k=__import__('os'))", "nothing is called '__import__' here"),
        ("strategy (lambda: 1)()", "nothing is called"),
        ("strategy FastestK(k=1+open)", "malformed node"),
        ("strategy FastestK(**{'k': 2})", "write every setting as name=value"),
        ("strategy FastestK(", "never closed"),
        (
            "strategy Synchronous()\ndata sizes=4",
            r"line 2.*`data` does not know 'sizes': did you mean `size`",
        ),
        ("strategy Synchronous()\ndata size=much", "invalid literal for int"),
        ("strategy Synchronous()\njump a", r"line 2.*nobody can `jump`: .*here are: cancelled, change"),
        ("strategy Synchronous()\njoin", "a word too few or too many"),
        ("strategy Synchronous()\njoin a b", "a word too few or too many"),
        ("strategy Synchronous()\njoin a\nfinish a sample=4", "a word too few or too many"),
        ("strategy Synchronous()\njoin a\nfinish b", "no such task of b.* Open are: a:1"),
        ("strategy Synchronous()\njoin a\nlate a", "no such task of a"),
        ("strategy Synchronous()\nwait alarm", "no alarm is set"),
        ("strategy Synchronous()\nevaluated loss=1", "no evaluation was asked for"),
    ],
)
def test_what_cannot_be_told_is_said(story: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        run_story(story)


def test_a_strategys_bug_is_shown_where_it_happens() -> None:
    story = "strategy Timed(seconds=0.0)\njoin a\nwait 1\n"
    assert "> ProtocolError: alarms rang 1001 times" in run_story(story, {"Timed": Timed})
