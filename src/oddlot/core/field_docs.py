"""The documentation below each field of a class, read from its source."""

import ast
import inspect
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from textwrap import dedent


@cache
def field_docs(kind: type) -> dict[str, str]:
    """Return the documentation below each field of a class and of its base classes, as one line each."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base is kind or is_dataclass(base):
            found |= _own_docs(base)
    return found


def _own_docs(kind: type) -> dict[str, str]:
    body = ast.parse(dedent(inspect.getsource(kind))).body[0]
    found = {}
    for one, text in pairwise(ast.iter_child_nodes(body)):
        match one, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(doc))):
                found[name] = " ".join(doc.split())
    return found
