"""`oddlot recommend`: the best items of a user, and the user's clicked items that are nearest to each of them."""

import json
import warnings
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from oddlot.core.support.errors import CheckpointError, OddlotWarning, UsageError
from oddlot.core.support.text import printable
from oddlot.core.support.user_warnings import warn

if TYPE_CHECKING:
    from oddlot.config.job_file import JobFile
    from oddlot.train.job import Job
    from oddlot.workloads.recommender.recommending import Recommendation

WORKLOAD = "recommend"


def recommend_items(
    run: str, user: str, count: int, weights: str, titles: str | None = None, *, as_json: bool
) -> None:
    """Print the best items of a user of a run of the workload `recommend`. Warn if popularity is better.

    Raise UsageError if the run has another workload or its log has changed, and otherwise as `oddlot.load`.
    """
    from oddlot.config.job_file import JobFile, SettingSources
    from oddlot.history.run_folder import RunFolder
    from oddlot.run.saved_weights import SavedWeights
    from oddlot.workloads.recommender.click_log import read_titles

    folder = RunFolder(run)
    folder.settings()  # raises CheckpointError if there is no run
    settings: dict[str, Any] = deepcopy(folder.about.get("settings") or {})
    workload = settings.get("workload") or ""
    name = str(workload.get("name", "") if isinstance(workload, dict) else workload)
    if name != WORKLOAD:
        message = f"{run} is a run of {name or 'a script'}: this needs a run of the workload {WORKLOAD}"
        raise UsageError(message, "no_recommender", path=run, workload=name)
    file = JobFile.of(SettingSources(settings))
    log = str(file.table.workload.options.get("log", ""))
    names = read_titles(titles) if titles else {}
    found = _recommended(run, user, count, weights, _job(file, log), log).with_titles(names)
    _compare_with_popularity(run, SavedWeights.read(folder, weights).metrics_in(folder))
    print(json.dumps(found.plain(), allow_nan=False) if as_json else printable(found.text()))


def _job(file: "JobFile", log: str) -> "Job":
    """Return the job of a run, without the warnings of its log. Raise UsageError, with advice for a relative path."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OddlotWarning)  # the run has shown them
            return file.job()
    except UsageError as error:
        if error.code != "unreadable_file" or Path(log).expanduser().is_absolute():
            raise
        advice = "The path is relative to the folder where the run was started: use this command there"
        raise error.with_message(f"{error}. {advice}") from None


def _recommended(run: str, user: str, count: int, weights: str, job: "Job", log: str) -> "Recommendation":
    """Return the best items. Raise UsageError if the log does not have the ids and rows of the run."""
    from oddlot.run.saved_weights import load
    from oddlot.workloads.recommender.click_log import other_log
    from oddlot.workloads.recommender.recommending import recommended

    try:
        return recommended(job, load(run, cast("Any", weights), into=job), user, count)
    except (UsageError, CheckpointError) as error:
        if error.code in ("other_model", "other_log"):  # other numbers of ids, or other ids or rows
            raise other_log(log) from None
        raise


def _compare_with_popularity(run: str, metrics: Mapping[str, float]) -> None:
    """Warn if the metrics of the weights are known and worse than popularity."""
    found, popular = (metrics.get(f"ndcg10{floor}", 0.0) for floor in ("", "_popular"))
    if found < popular:
        text = f"NDCG@10 of {run} is {found:.3f}, and of popularity {popular:.3f}"
        warn(
            f"{text}: train for more epochs or with other options",
            "worse_than_popularity",
            path=run,
            ndcg10=found,
            popular=popular,
        )
