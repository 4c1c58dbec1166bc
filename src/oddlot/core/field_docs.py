"""The texts beneath a class's fields, read from its source."""

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent


@cache
def field_docs(kind: type) -> dict[str, str]:
    """Return the text beneath each field of a class, on one line."""
    body = ast.parse(dedent(inspect.getsource(kind))).body[0]
    found = {}
    for one, text in pairwise(ast.iter_child_nodes(body)):
        match one, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(doc))):
                found[name] = " ".join(doc.split())
    return found
