"""The page with the model of a run."""

from oddlot.core.support.errors import UsageError
from oddlot.demo.digit_model import HINT, DigitModel
from oddlot.demo.model_file import pack
from oddlot.demo.site import site
from oddlot.demo.training_strip import training_strip
from oddlot.history.peer_logs import read_run_log
from oddlot.history.run_folder import RunFolder
from oddlot.run.saved_weights import load


def run_site(run: str, *, int8: bool) -> dict[str, bytes]:
    """Return the files of the page with the last weights of a run, and the strip of its training.

    Raises:
        UsageError: The run trains another workload.
        CheckpointError: There is no run, it has no weights yet, or its files are damaged.
    """
    folder = RunFolder(run)
    workload = str(folder.settings()["job"])
    state = {name: tensor.float().numpy() for name, tensor in load(run).items()}
    try:
        model = DigitModel.of(state, f"{run} ({workload})")
    except UsageError as error:
        if error.code != "not_a_digit_model":
            raise
        message = f"{run} is a run of {workload}, whose model the page cannot show: {HINT}"
        raise error.with_message(message, path=run, workload=workload) from None
    about = {"name": f"{workload} in {folder.path.resolve().name}", "source": "Weights of a run of oddlot."}
    return site(
        pack(model, about, int8=int8), training_strip(read_run_log(folder), f"Training of {workload}")
    )
