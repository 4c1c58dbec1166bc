"""Strategies for distributed training, and the base classes for your own."""

from oddlot.core.strategy import (
    Strategy as Strategy,
    Traits as Traits,
    View as View,
    assign as assign,
    assign_all as assign_all,
    assign_idle as assign_idle,
    shares_by_weight as shares_by_weight,
)
from oddlot.core.strategy_wrapper import StrategyWrapper as StrategyWrapper
from oddlot.strategies.shipped import *
from oddlot.strategies.support.stage_switching import (
    ByError as ByError,
    ByGradients as ByGradients,
    ByPlateau as ByPlateau,
)
