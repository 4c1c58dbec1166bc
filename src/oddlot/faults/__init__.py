"""Fault injection: plans of faults, and what carries them out on any engine."""

from oddlot.faults.plan import Chaos, Fault

__all__ = ["Chaos", "Fault"]
