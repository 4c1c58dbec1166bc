"""README and docs: programs and commands run and print the documented output, and no page has a banned phrase.

The blocks of a page run in order, in one namespace and one empty folder. A block that starts with `# NAME.EXT` is
written to that file. A comment `not run: REASON` above a block skips it. A comment `needs: MODULE` skips it if the
module is missing, and the test of the page is then skipped at its end.

A text block after a block is its output, copied from a real run. Numbers may differ by 10 %, and numbers that a command
has measured may have any value. A line `...` matches any lines. `pytest --rewrite` writes the output of a run to the
pages.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from oddlot.cli import app as cli
from oddlot.engines.local import config as on_local, fork_client

ROOT = Path(__file__).parent.parent
GENERATED = {"cli", "strategies", "job-file", "fleet-file", "faults-file"}
PAGES = [
    page
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    if page.parent.name not in {"notes", "results", "build"} and page.stem not in GENERATED
]
TIERS = {
    "docs/how-to/cluster.md": pytest.mark.ray,
    "docs/how-to/gossip.md": pytest.mark.long,  # four runs of four processes
    **dict.fromkeys(
        (f"docs/papers/{name}.md" for name in ("averaging", "slide", "stragglers", "vc_asgd")),
        pytest.mark.long,
    ),
    "docs/how-to/choose-a-strategy.md": pytest.mark.long,
    "docs/how-to/resume.md": pytest.mark.long,
}
"""Pages excluded from `make test`. Other tests cover their content with less work."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"% needs: (\w+)\n+\Z")
NOT_RUN = re.compile(r"(?:% not run: (.+)|<!-- not run: (.+) -->)\n+\Z")
FILE = re.compile(r"# ([\w-]+\.(?:toml|py|csv|txt))\b.*\n")
NUMBER = r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?"
TOLERANCE = 0.1
WIDTH = {"text": 98}
"""Maximum length of a line in a block, by language. For Python code it is 92: see docs/how-to/ruff.toml."""
UNIT = r"\s?(?:(?:s|ms|min|[kMG]?B|on average|assigned|wasted|versions|records)\b|%)"
MEASURED = re.compile(rf"(?<=accuracy ){NUMBER}|(?<=loss ){NUMBER}|(?<=version ){NUMBER}|{NUMBER}(?={UNIT})")
"""Numbers in the output of a command that depend on the machine and on the order of updates."""
ABSENT = re.compile(r", workers available .*")
"""Part of the output of a command that is absent if workers were always available."""
BANNED = (
    "is told", "are told", "whoever", "somebody", "nobody", "in vain", "misfortune", "talks nonsense",
    "so many machines",
)  # fmt: skip


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    not_run: str = ""
    needs: str = ""

    @property
    def is_command(self) -> bool:
        """Return whether a shell runs the block."""
        return self.language in {"bash", "sh"}


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for found in BLOCK.finditer(page):
        reason = NOT_RUN.search(page[: found.start()])
        needs = NEEDS.search(page[: found.start()])
        line = page.count("\n", 0, found.start()) + 1
        not_run = (reason[1] or reason[2]) if reason else ""
        yield Block(found[1], found[2], line, not_run, needs[1] if needs else "")


def same(text: str, expected: str, is_command: bool = False) -> bool:
    """Return whether a text matches the expected one.

    Numbers match within the tolerance, a line `...` matches any lines, and spaces match any spaces.
    """
    if is_command:
        text, expected = (MEASURED.sub("#", ABSENT.sub("", one)) for one in (text, expected))
    parts = re.split(rf"({NUMBER}|^\.\.\.$)", expected.strip(), flags=re.MULTILINE)
    pattern = "".join(
        r".*?" if part == "..." else f"({NUMBER})" if re.fullmatch(NUMBER, part) else spaced(part)
        for part in parts
    )
    found = re.fullmatch(pattern, text.strip(), re.DOTALL)
    wanted = [part for part in parts if re.fullmatch(NUMBER, part)]
    return found is not None and all(
        near(one, other) for one, other in zip(found.groups(), wanted, strict=True)
    )


def spaced(text: str) -> str:
    """Return a pattern that matches a text with any spaces."""
    return re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(text))


def near(one: str, other: str) -> bool:
    """Return whether two numbers are equal within the tolerance."""
    a, b = (float(number.replace(",", "").rstrip(".")) for number in (one, other))
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b))


def commands(text: str) -> Iterator[str]:
    """Yield the commands of a bash block. A backslash at the end of a line continues it."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        command = line.partition("  #")[0].strip()
        if command and not command.startswith("#"):
            yield command


def run_command(command: str) -> str:
    """Run a command in this folder and return its output. `oddlot` runs in this process."""
    if not command.startswith("oddlot "):
        done = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, check=True)
        return done.stdout
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert not end.value.code, f"{command}: exit code {end.value.code}"
    return out.getvalue()


def run_block(block: Block, names: dict[str, Any]) -> str:
    """Run a block and return its output."""
    if named := FILE.match(block.text):
        Path(named[1]).write_text(block.text, encoding="utf-8")
        return ""
    if block.is_command:
        return "".join(map(run_command, commands(block.text)))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(block.text, f"line {block.line}", "exec"), names)
    return out.getvalue()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a link to the folder of the current page. Workers import from it. All pages share one fork server."""
    link = tmp_path_factory.mktemp("page") / "here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(link), *sys.path])
        server = fork_client.ForkClient()
        close = server.close
        patch.setattr(server, "close", lambda: None)
        patch.setattr(on_local, "ForkClient", lambda: server)
        patch.setattr(fork_client, "start_early", lambda: None)
        yield link
        close()


@pytest.fixture
def folder(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    here.unlink(missing_ok=True)
    here.symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "88")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("ODDLOT_DATA", raising=False)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:  # pages may have modules with the same name
        if str(getattr(sys.modules[name], "__file__", "")).startswith((str(here), str(tmp_path))):
            del sys.modules[name]
    invalidate_caches()


# A worker that starts late changes the result of a short run.
@pytest.mark.filterwarnings("ignore:NDCG@10 of")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name, marks=TIERS.get(name, ()))
        for page in PAGES
        for name in [str(page.relative_to(ROOT))]
    ],
)
def test_code_blocks_of_a_page_work(page: Path, folder: Path, pytestconfig: pytest.Config) -> None:
    before: tuple[Block, str] | None = None
    names, missing = dict[str, Any](__name__="page"), list[str]()
    written = page.read_text(encoding="utf-8")
    for block in blocks(written):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.not_run:
            continue
        if block.needs and find_spec(block.needs) is None:
            missing.append(f"{where} needs {block.needs}")
            continue
        if block.language == "text" and before is not None:
            source, out = before
            if not same(out, block.text, source.is_command):
                assert pytestconfig.getoption("rewrite"), f"{where}:\n{out}\nis not\n{block.text}"
                written = written.replace(
                    block.text, "".join(f"{line.rstrip()}\n" for line in out.splitlines()), 1
                )
        elif block.language in {"python", "bash", "sh", "toml"}:
            try:
                before = block, run_block(block, names)
            except Exception as error:
                raise AssertionError(f"{where} failed") from error
            continue
        before = None
    if pytestconfig.getoption("rewrite"):
        page.write_text(written, encoding="utf-8")
    if missing:
        pytest.skip(", ".join(missing))


@pytest.mark.parametrize(
    ("text", "expected", "is_same"),
    [
        ("accuracy 0.95", "accuracy 0.99", True),
        ("accuracy 0.5", "accuracy 0.99", False),
        ("a  1,437   b", "a 1,400 b", True),
        ("a 1 b", "a 1 c", False),
        ("one\nanything 3\ntwo", "one\n...\ntwo", True),
        ("one\ntwo", "one\n...\nthree", False),
        ("one anything", "one ...", False),
    ],
)
def test_outputs_are_compared_with_tolerance(text: str, expected: str, is_same: bool) -> None:
    assert same(text, expected) == is_same


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        (
            "loss 2.5, 9.0 s, workers available 12.5 % of it\n2,000 assigned, 1,437 merged, 3 wasted (0.1 %)",
            True,
        ),
        ("loss 2.5, 9.0 s\n1,437 assigned, 1,437 merged, 0 wasted (0.0 %)", True),
        ("loss 2.5, 9.0 s\n1,437 assigned, 1,000 merged, 0 wasted (0.0 %)", False),
        ("loss 2.5\n1,437 assigned, 1,437 merged, 0 wasted (0.0 %)", False),
    ],
)
def test_measured_numbers_of_commands_may_differ(text: str, is_same: bool) -> None:
    page = "loss 0.1, 1.5 s, workers available 87.4 % of it\n1,437 assigned, 1,437 merged, 0 wasted (0.0 %)"
    assert same(text, page, is_command=True) == is_same


def test_code_blocks_fit_the_page_width() -> None:
    pages = [page for page in PAGES if page.name not in {"README.md", "CONTRIBUTING.md", "design.md"}]
    assert not [
        f"{page.name}:{block.line}: {line}"
        for page in pages
        for block in blocks(page.read_text(encoding="utf-8"))
        for line in block.text.splitlines()
        if len(line) > WIDTH.get(block.language, 92)
    ]


def test_sphinx_keeps_straight_quotes() -> None:
    """Without this setting, Sphinx changes quotes to curly quotes, and `--` of options to dashes."""
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    assert re.search(r"^smartquotes = False\b", conf, re.MULTILINE)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "plots").glob("*.svg")), ids=lambda path: path.name)
def test_plots_are_valid_svg(path: Path) -> None:
    assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def golden_pattern(text: str) -> str:
    """Return a pattern for a text with values that may be masked, as in golden sentences."""
    return r"\s".join(rf"(?:{re.escape(word)}|\S*<\w+>\S*)" for word in text.split())


def test_troubleshooting_page_has_only_existing_messages() -> None:
    page = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(.+?)` \| .{40}", page.partition("\n## ")[2], re.MULTILINE)
    golden = "\n".join(
        " ".join(text.split())
        for path in sorted((ROOT / "tests" / "messages").glob("*.txt"))
        for text in path.read_text(encoding="utf-8").split("\n\n")
    )
    patterns = [".*".join(map(golden_pattern, message.split("..."))) for message in shown]
    assert len(shown) > 30
    assert not [one for one, pattern in zip(shown, patterns, strict=True) if not re.search(pattern, golden)]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_no_banned_phrase_is_used() -> None:
    files = [*PAGES, *sorted((ROOT / "src").rglob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}: {phrase}"
        for path in files
        for phrase in BANNED
        if re.search(rf"\b{phrase}\b", path.read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert not found
