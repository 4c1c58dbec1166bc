"""Simulated machines: their speed, availability and price."""

from oddlot.machines.buying import Buying
from oddlot.machines.capacity import Alive, Always, Memoryless, Pools
from oddlot.machines.delay_models import (
    Deterministic,
    Erlang,
    Exponential,
    Lognormal,
    ShiftedExponential,
    Trace,
)
from oddlot.machines.machine import Lifetime, Link, Machine
from oddlot.machines.market import Fleet, Hub, Offer, Zone
from oddlot.machines.time_series import Steps

__all__ = [
    "Alive",
    "Always",
    "Buying",
    "Deterministic",
    "Erlang",
    "Exponential",
    "Fleet",
    "Hub",
    "Lifetime",
    "Link",
    "Lognormal",
    "Machine",
    "Memoryless",
    "Offer",
    "Pools",
    "ShiftedExponential",
    "Steps",
    "Trace",
    "Zone",
]
