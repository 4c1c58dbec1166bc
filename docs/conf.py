"""Sphinx settings. `make docs` builds the site without a network."""

import sys
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import typing as sphinx_typing

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference_pages  # noqa: E402 - it is in this folder

import oddlot  # noqa: E402 - as above
import oddlot.testing  # noqa: E402 - as above

vars(oddlot.testing).update(
    {name: getattr(oddlot.testing, name) for name in oddlot.testing.__all__}
)  # for autodoc

project = "oddlot"
author = "oddlot developers"
project_copyright = "oddlot developers"
version = release = oddlot.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["build", "notes", "results/*.notes.md"]
default_role = "code"  # docstrings mark code with single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
html_theme = "furo"
html_title = "oddlot"
html_static_path = ["static"]
html_css_files = ["oddlot.css"]
smartquotes = False  # examples and options are pasted
copybutton_selector = "div:not(.highlight-text) > div.highlight pre"  # a text block is output

_stringify = sphinx_typing.stringify_annotation


def without_checks(annotation: Any, *args: Any, **options: Any) -> str:
    """Return the text of a type, without the checks of settings, which are functions."""
    if get_origin(annotation) is Annotated:
        return without_checks(get_args(annotation)[0], *args, **options)
    parts = get_args(annotation)
    if any(get_origin(part) is Annotated for part in parts) and type(None) in parts:
        return " | ".join(without_checks(part, *args, **options) for part in parts)
    return _stringify(annotation, *args, **options)


sphinx_typing.stringify_annotation = without_checks  # before autodoc imports it

reference_pages.write(HERE / "reference")


def _whole_text(docstring: GoogleDocstring) -> tuple[str, list[str]]:
    """Return no type and the whole text beneath a field; napoleon takes words before a colon for its type."""
    return "", docstring._dedent(docstring._consume_to_end())


GoogleDocstring._consume_inline_attribute = _whole_text  # type: ignore[method-assign,assignment]  # on purpose

_analyze = ModuleAnalyzer.analyze


def _analyze_without_state(analyzer: ModuleAnalyzer) -> None:
    """Mark fields whose text begins with `State:` as private, so that they are not listed among the settings."""
    if not analyzer._analyzed:
        _analyze(analyzer)
        for lines in analyzer.attr_docs.values():
            if lines and lines[0].startswith("State:"):
                lines += [":meta private:", ""]


ModuleAnalyzer.analyze = _analyze_without_state  # type: ignore[method-assign,assignment]  # on purpose
