"""Commands: what a strategy asks for (`Command`), and the actions that the conductor makes of them."""

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
