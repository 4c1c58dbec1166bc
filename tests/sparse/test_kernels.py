"""The interface of the kernels is complete and has no unused functions."""

import ast
from pathlib import Path

import oddlot.sparse
from oddlot.sparse.kernels import INTERFACE

PACKAGE = Path(oddlot.sparse.__file__).parent
KERNELS = "oddlot.sparse.kernels"


def called(text: str) -> set[tuple[str, str]]:
    """Return the kernel functions that a source text calls, by module and name, without constants in capitals."""
    tree = ast.parse(text)
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = {
        (one.asname or one.name): one.name
        for node in imported
        if node.module == KERNELS
        for one in node.names
    }
    parts = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    named = ((part.value.id, part.attr) for part in parts if isinstance(part.value, ast.Name))
    return {(own[of], name) for of, name in named if of in own and not name.isupper()}


def test_other_modules_call_exactly_the_kernel_interface() -> None:
    """Other modules import kernel modules only, not functions from them."""
    texts = [path.read_text() for path in PACKAGE.rglob("*.py") if PACKAGE / "kernels" not in path.parents]
    found = set[tuple[str, str]]().union(*map(called, texts))
    assert found == {(module, name) for module, names in INTERFACE.items() for name in names}
    assert not [text for text in texts if f"from {KERNELS}." in text]


def test_kernel_calls_are_found_under_aliases() -> None:
    text = f"from {KERNELS} import output as kernels, tables\nkernels.forward(tables.sort, kernels.KIND, other.f)"
    assert called(text) == {("output", "forward"), ("tables", "sort")}
