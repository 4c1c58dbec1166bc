"""One algorithm per file: a dataclass of settings with `on(event, view)`."""

from oddlot.strategies.asynchronous import Asynchronous
from oddlot.strategies.fastest_k import FastestK
from oddlot.strategies.local_sgd import LocalSGD
from oddlot.strategies.synchronous import Synchronous

BY_NAME = {
    "synchronous": Synchronous,
    "fastest_k": FastestK,
    "asynchronous": Asynchronous,
    "local_sgd": LocalSGD,
}
"""Strategies by the names that the command line and job files use."""

__all__ = ["BY_NAME", "Asynchronous", "FastestK", "LocalSGD", "Synchronous"]
