"""The examples and README's program print what they say they print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def printed(program: Path | str, folder: Path) -> str:
    """What a program (its file, or its text) prints when it runs in the folder, with nothing on stderr."""
    command = [sys.executable, str(program)] if isinstance(program, Path) else [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def as_expected(text: str, expected: str) -> bool:
    """Whether the text is the expected one, in which # stands for one digit or more; spaces before it may be others."""
    pattern = re.sub(r"(\\ )+\\#", "[ ]+[0-9]+", re.escape(expected)).replace("\\#", "[0-9]+")
    return re.fullmatch(pattern, text) is not None


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_must(example: Path, tmp_path: Path) -> None:
    output = printed(example, tmp_path)
    expected = example.with_suffix(".out").read_text(encoding="utf-8")
    assert as_expected(output, expected), f"{output}\nis not\n{expected}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_needs_no_guard(example: Path) -> None:
    lines = example.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 80
    assert not any(line.startswith("if __name__") for line in lines)


def test_the_comparison_can_fail() -> None:
    assert as_expected("after 12.25 s", "after #.# s")
    assert as_expected("a    9.5\nb   12.5", "a   #.#\nb   #.#")
    assert not as_expected("a9.5", "a   #.#")
    assert not as_expected("after 12 s", "after #.# s")
    assert not as_expected("after 1.25 s.", "after #.# s")


def test_readme_s_program_prints_what_readme_says(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program, expected = re.findall(
        r"```python\n(.*?)```\s+prints[^\n]*\n+```text\n(.*?)```", readme, re.DOTALL
    )[0]
    assert 10 <= program.count("\n") <= 20
    assert as_expected(printed(program, tmp_path), expected)
