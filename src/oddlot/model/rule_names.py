"""Rules and gates by their names on the command line and in job files, and users' own by their import path.

Numbers follow a name after colons, in the order of the class's fields: `trimmed_mean:0.2`, `krum:1`, `range:norm:5:95`.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.core.support.user_code import imported_class, is_import_path, place_of, trace_of
from oddlot.model.combine import Combine, Gate

SUM = "sum"
"""Name of the weighted sum, the default. It is no `Combine`."""
COMBINES = (SUM, "trimmed_mean", "median", "krum")
"""Names that `combine_of` knows."""
GATES = ("range",)
"""Names that `gates_of` knows."""


def combine_of(text: str) -> Combine | None:
    """Return the rule of this name, or of the class at an import path. None for the weighted sum.

    Raise UsageError if the name is unknown, its numbers are invalid, or its class cannot be created.
    """
    if text == SUM:
        return None
    made: Combine = _made(text, "combine", Combine, COMBINES)
    return made


def gates_of(given: Any) -> tuple[Gate, ...]:
    """Return gates from text with commas, or from a sequence of gates and texts. Raise UsageError as `combine_of`."""
    if isinstance(given, str):
        given = [text.strip() for text in given.split(",") if text.strip()]
    if not isinstance(given, Sequence):
        given = [given]
    return tuple(_made(one, "gate", Gate, GATES) if isinstance(one, str) else one for one in given)


def rule_name(rule: Combine | Gate | None) -> str:
    """Return the name of a rule or a gate for run.json: its text with all numbers, or its import path."""
    if rule is None:
        return SUM
    names = [name for name, kind in _kinds().items() if type(rule) is kind]
    if not names:
        return place_of(type(rule))
    return ":".join([names[0], *(str(getattr(rule, one)) for one in _settings(type(rule)))])


def _settings(kind: type) -> list[str]:
    """Return the names of the settings that a name's numbers give, in their order."""
    return [one.name for one in fields(kind) if one.init]


def _made(text: str, kind: str, base: type, names: Sequence[str]) -> Any:
    """Return the object that a text describes."""
    name, *numbers = text.split(":")
    if name in names and name != SUM:
        made_by, names = _kinds()[name], _settings(_kinds()[name])
        if len(numbers) > len(names):
            known = f"in this order: {', '.join(names)}" if names else "none"
            message = (
                f"{kind} {text!r} has {len(numbers)} values, but {name} has {len(names)} settings, {known}"
            )
            raise UsageError(message, "too_many_values", kind, given=text, settings=names)
        return made_by(*map(_number, numbers))
    if not is_import_path(text):
        unknown = UnknownName(kind, name, names, key="gates" if kind == "gate" else kind)
        raise unknown.with_message(f"{unknown}; or name your own class as package.module:Class")
    own = imported_class(text, base, kind, key=kind)
    try:
        return own()
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        reason = trace_of(error)
        message = f"the class {text} cannot be created without arguments:\n{reason}"
        raise UsageError(message, f"{kind}_needs_arguments", kind, given=text, reason=reason) from None


def _number(text: str) -> int | float | str:
    """Return a number if the text is one."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _kinds() -> dict[str, type]:
    """Return the class of each name. This imports PyTorch."""
    from oddlot.model.evidence_gate import EvidenceRange
    from oddlot.model.robust_combine import Krum, Median, TrimmedMean

    return {"trimmed_mean": TrimmedMean, "median": Median, "krum": Krum, "range": EvidenceRange}
