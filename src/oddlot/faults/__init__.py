"""Fault injection into any engine, from a plan of faults."""

from oddlot.faults.plan import Chaos, Fault

__all__ = ["Chaos", "Fault"]
