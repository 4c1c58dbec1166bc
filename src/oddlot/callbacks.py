"""Callbacks, for `oddlot.fit(callbacks=[...])`.

`EarlyStopping` and `TensorBoard` are ready to use. For your own callback, subclass `oddlot.Callback`.
"""

from oddlot.history.callback import Callback, RunProgress
from oddlot.integrations.tensorboard import TensorBoard
from oddlot.run.early_stopping import EarlyStopping

__all__ = ["Callback", "EarlyStopping", "RunProgress", "TensorBoard"]
