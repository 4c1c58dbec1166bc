"""Sphinx settings. `make docs` builds the site without a network."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference_pages  # noqa: E402 - it lies beside this file

import oddlot  # noqa: E402 - as above

project = "oddlot"
author = "oddlot developers"
project_copyright = "oddlot developers"
version = release = oddlot.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_design"]
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["build", "notes"]
default_role = "code"  # docstrings mark code with single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "separated"
html_theme = "furo"
html_title = "oddlot"
html_static_path: list[str] = []

reference_pages.write(HERE / "reference")
