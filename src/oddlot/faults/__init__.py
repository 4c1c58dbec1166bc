"""Fault injection: plans of faults, and their injection into any engine."""

from oddlot.faults.plan import Chaos, Fault

__all__ = ["Chaos", "Fault"]
