"""Checks for your own strategies, codecs and engines.

    def test_my_strategy() -> None:
        check_strategy(lambda: MyStrategy(k=3))

`check_strategy` and `check_codec` require Hypothesis. `check_codec` and `check_engine` require PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oddlot.testing.codec_check import check_codec
    from oddlot.testing.engine_check import check_engine
    from oddlot.testing.scenarios import check_story, run_story
    from oddlot.testing.strategy_check import BrokenPromise, check_strategy

__all__ = ["BrokenPromise", "check_codec", "check_engine", "check_story", "check_strategy", "run_story"]

_HOME = {
    "BrokenPromise": "strategy_check",
    "check_codec": "codec_check",
    "check_engine": "engine_check",
    "check_story": "scenarios",
    "check_strategy": "strategy_check",
    "run_story": "scenarios",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'oddlot.testing' has no attribute {name!r}")
    return getattr(import_module(f"oddlot.testing.{_HOME[name]}"), name)
