"""Rows of bad samples in the data, which a conductor does not know."""

from collections.abc import Iterator
from contextlib import contextmanager

from oddlot.core.errors import BadSamples, JobError
from oddlot.run.spec import Recipe

MAX_ROWS = 64
"""Rows that an error names."""


@contextmanager
def rows_named(recipe: Recipe) -> Iterator[None]:
    """Name bad samples by their index in the data."""
    try:
        yield
    except BadSamples as bad:
        rows = recipe.rows(bad.spans)
        more = f" and {len(rows) - MAX_ROWS} more" if len(rows) > MAX_ROWS else ""
        named = ", ".join(map(str, rows[:MAX_ROWS]))
        told = f"some samples {bad.why}\nThese samples are among train_data[{named}{more}]"
        raise JobError(told, bad.code, **bad.fields, rows=rows) from bad
