"""The examples print the documented output."""

import re
import subprocess
import sys
from difflib import SequenceMatcher
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PLAIN = "_plain"
"""End of the names of plain PyTorch scripts. The example without it is the same with oddlot."""
PAIRS = [
    (path.with_stem(path.stem.removesuffix(PLAIN)), path) for path in EXAMPLES if path.stem.endswith(PLAIN)
]
IMPORTED = ["own_strategy"]
"""Examples that the command line imports, too."""
PROGRESS = (
    r" samples per (model update|local step) |   epoch [0-9.]+   version |^worker \S+ was killed by signal 9$"
)
LONG = ["stragglers"]
"""Examples that run completely in `make test-long` only, as plain scripts do. `stragglers` trains nine times."""


def printed(program: Path | str, folder: Path) -> str:
    """Run a program (a file or source code) in the folder and return its output.

    Assert that it prints only progress to stderr.
    """
    command = [sys.executable, str(program)] if isinstance(program, Path) else [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert not [line for line in run.stderr.splitlines() if not re.search(PROGRESS, line)]
    return run.stdout


def as_expected(text: str, expected: str) -> bool:
    """Return whether a text matches. `#` stands for one or more digits, with any number of spaces before it."""
    pattern = re.sub(r"(\\ )+\\#", "[ ]+[0-9]+", re.escape(expected)).replace("\\#", "[0-9]+")
    return re.fullmatch(pattern, text) is not None


def expected_of(example: Path) -> str:
    return example.with_suffix(".out").read_text(encoding="utf-8")


def test_examples_are_short() -> None:
    for example in EXAMPLES:
        lines = example.read_text(encoding="utf-8").splitlines()
        assert len(lines) < 80 or example.stem.endswith(PLAIN)
        guarded = any(line.startswith("if __name__") for line in lines)
        assert guarded == (example.stem in IMPORTED), "a program needs no guard"


def lines_changed(text: str, plain: str) -> int:
    """Return the number of lines of a text that were added to the plain one, or changed."""
    after, before = text.splitlines(), plain.splitlines()
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return len(after) - sum(block.size for block in blocks)


def test_lines_changed_are_counted() -> None:
    assert lines_changed("import b\nx = 2\ny = 3\nz = 5\n", "import a\nx = 2\nz = 4\nprint(z)\n") == 3
    assert lines_changed("x = 2\n", "y = 1\nx = 2\n") == 0


def test_plain_scripts_move_with_ten_lines() -> None:
    texts = {path: path.read_text(encoding="utf-8") for pair in PAIRS for path in pair}
    changed = {example.stem: lines_changed(texts[example], texts[plain]) for example, plain in PAIRS}
    assert len(changed) == 3
    assert max(changed.values()) <= 10, changed
    assert min(len(texts[plain].splitlines()) for _, plain in PAIRS) >= 60


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, marks=pytest.mark.long if path.stem in LONG or path.stem.endswith(PLAIN) else ())
        for path in EXAMPLES
    ],
)
def test_example_prints_the_expected_output(example: Path, tmp_path: Path) -> None:
    output, expected = printed(example, tmp_path), expected_of(example)
    assert as_expected(output, expected), f"{output}\nis not\n{expected}"


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_shortened_example_prints_its_table(name: str, tmp_path: Path) -> None:
    example = ROOT / "examples" / f"{name}.py"
    program, ends = re.subn(r'until="[^"]*"', 'until="epochs>=1"', example.read_text(encoding="utf-8"))
    assert ends == 1
    output, expected = printed(program, tmp_path), expected_of(example).replace("0.9#", "0.##")
    assert as_expected(output, expected), f"{output}\nis not\n{expected}"


def test_output_comparison_detects_differences() -> None:
    assert as_expected("after 12.25 s", "after #.# s")
    assert as_expected("a    9.5\nb   12.5", "a   #.#\nb   #.#")
    assert not as_expected("a9.5", "a   #.#")
    assert not as_expected("after 12 s", "after #.# s")
    assert not as_expected("after 1.25 s.", "after #.# s")
