"""The page with the model of a run."""

from collections.abc import Sequence
from typing import Any

from oddlot.core.events import Evaluated
from oddlot.core.records import Record
from oddlot.core.support.errors import UsageError
from oddlot.demo.digit_model import HINT, DigitModel
from oddlot.demo.model_file import pack
from oddlot.demo.site import site
from oddlot.demo.training_strip import training_strip
from oddlot.history.log import surviving
from oddlot.history.peer_logs import read_run_log
from oddlot.history.run_folder import RunFolder
from oddlot.history.segments import segments_of
from oddlot.run.saved_weights import load


def run_site(run: str, *, int8: bool) -> dict[str, bytes]:
    """Return the files of the page with the last weights of a run, and the strip of its training.

    Raises:
        UsageError: The run trains another workload.
        CheckpointError: There is no run, it has no weights yet, or its files are damaged.
    """
    folder = RunFolder(run)
    settings = folder.settings()
    workload = str(settings["job"])
    state = {name: tensor.float().numpy() for name, tensor in load(run).items()}
    try:
        model = DigitModel.of(state, f"{run} ({workload})")
    except UsageError as error:
        if error.code != "not_a_digit_model":
            raise
        message = f"{run} is a run of {workload}, whose model the page cannot show: {HINT}"
        raise error.with_message(message, path=run, workload=workload) from None
    records = surviving(read_run_log(folder))
    strip = training_strip(records, f"Training of {workload}", segments_of(settings))
    name = f"{workload} in {folder.path.resolve().name}"
    about = {"name": name, "source": "Weights of a run of oddlot."} | _accuracy(records)
    return site(pack(model, about, int8=int8), strip)


def _accuracy(records: Sequence[Record]) -> dict[str, Any]:
    """Return the accuracy of the latest evaluation. Empty if it has none, as before the classifier's stage."""
    found = [record.event.metrics for record in records if isinstance(record.event, Evaluated)]
    return {name: value for name, value in (found[-1] if found else {}).items() if name == "accuracy"}
