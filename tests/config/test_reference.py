"""The generated reference pages."""

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("strategies", "job-file", "fleet-file", "faults-file")
KIND = re.compile(r'^#+ (?:\w+ = "\w+"|switch: \w+|[a-z_]+)\n\n(.*)$', re.MULTILINE)
"""The heading of a strategy or of a kind of table, and the next line."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the text of each generated page."""
    folder = tmp_path_factory.mktemp("reference")
    sys.path.insert(0, str(DOCS))
    try:
        import reference_pages
    finally:
        sys.path.remove(str(DOCS))
    reference_pages.write(folder)
    return {name: (folder / f"{name}.md").read_text(encoding="utf-8") for name in PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_every_key_has_a_description(pages: dict[str, str], page: str) -> None:
    """Every description starts with a capital letter, a number or code, and ends with a period."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in pages[page].splitlines() if line.startswith("| `")]
    texts = [(row[0].strip(), row[-1].strip()) for row in rows]
    assert texts
    assert not [(key, text) for key, text in texts if not re.fullmatch(r"[A-Z0-9`].*\.", text)]


@pytest.mark.parametrize("page", ["strategies", "job-file", "fleet-file"])
def test_every_kind_has_a_description(pages: dict[str, str], page: str) -> None:
    """The sentence follows the heading of a strategy, or of a kind of table such as a delay."""
    texts = KIND.findall(pages[page])
    assert texts
    assert not [text for text in texts if not re.match(r"[A-Z]", text) and not text.startswith("##")]
