"""Commands of a strategy (`Command`), and the actions that carry them out."""

from oddlot.core.commands import (
    Abort,
    Action,
    Assign,
    Blend,
    Cancel,
    Command,
    Drop,
    Evaluate,
    Evict,
    HandOver,
    Keep,
    Release,
    Skip,
    Start,
    Step,
    Wake,
)

__all__ = [
    "Abort",
    "Action",
    "Assign",
    "Blend",
    "Cancel",
    "Command",
    "Drop",
    "Evaluate",
    "Evict",
    "HandOver",
    "Keep",
    "Release",
    "Skip",
    "Start",
    "Step",
    "Wake",
]
