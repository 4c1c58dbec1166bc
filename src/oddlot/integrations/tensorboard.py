"""A callback that writes the metrics of a run for TensorBoard."""

import os
from collections.abc import Mapping
from typing import Any

from oddlot.core.events import Arrived, Joined, Leaving, Lost
from oddlot.core.records import Record
from oddlot.core.support.errors import UsageError
from oddlot.history.callback import Callback, RunProgress


class TensorBoard(Callback):
    """Write losses, metrics and the number of workers into `log_dir`, by version.

    Scalars: `train/loss` of each update, `eval/NAME` of each evaluation, and `run/epochs`, `run/workers` and, with
    prices, `run/dollars`. A resumed run with the same folder continues its curves. Raise UsageError if the package
    `tensorboard` is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir = os.fspath(log_dir)
        self.make_writer = _summary_writer()
        self.writer: Any = None

    def on_start(self, run: RunProgress) -> None:
        """Open the writer. It hides events of versions that the run makes again."""
        self.writer = self.make_writer(self.log_dir, purge_step=run.version + 1 if run.earlier else None)

    def on_record(self, run: RunProgress, record: Record) -> None:
        """Write the loss of an update, or the number of workers if it changed."""
        match record.event:
            case Arrived(update) if update.loss is not None:
                self._write("train/loss", update.loss, run.version)
            case Joined() | Lost() | Leaving():
                self._write("run/workers", run.workers, run.version)

    def on_evaluation(self, run: RunProgress, version: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a version, and the epochs and the cost so far."""
        for name, value in metrics.items():
            self._write(f"eval/{name}", value, version)
        self._write("run/epochs", run.history[-1]["epochs"], version)
        if run.dollars:
            self._write("run/dollars", run.history[-1]["dollars"], version)

    def on_end(self, run: RunProgress, ended: str) -> None:
        """Close the writer."""
        self.writer.close()

    def _write(self, name: str, value: float, version: int) -> None:
        self.writer.add_scalar(name, value, version)


def _summary_writer() -> Any:
    """Return PyTorch's writer class. Raise UsageError without the package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        message = "TensorBoard needs a package: pip install tensorboard (oddlot's extra `tensorboard`)"
        raise UsageError(message, "missing_package", package="tensorboard", reason=str(error)) from None
    return SummaryWriter
