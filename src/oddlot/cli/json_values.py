"""Values that JSON can hold."""

from math import isfinite
from typing import Any


def without_nan(value: Any) -> Any:
    """Replace NaN and infinity by None, for JSON."""
    if isinstance(value, dict):
        return {key: without_nan(part) for key, part in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value
