"""`oddlot recommend`: the best items of a user, and the user's clicked items that are nearest to each of them."""

import json
from copy import deepcopy
from typing import Any, cast

from oddlot.core.support.errors import UsageError
from oddlot.core.support.text import printable

WORKLOAD = "recommend"


def recommend_items(run: str, user: str, count: int, weights: str, *, as_json: bool) -> None:
    """Print the best items of a user of a run of the workload `recommend`.

    Raise UsageError if the run has another workload, and otherwise as `oddlot.load`.
    """
    from oddlot.config.job_file import JobFile, SettingSources
    from oddlot.history.run_folder import RunFolder
    from oddlot.run.saved_weights import load
    from oddlot.workloads.recommender.recommending import recommended

    folder = RunFolder(run)
    folder.settings()  # raises CheckpointError if there is no run
    settings: dict[str, Any] = deepcopy(folder.about.get("settings") or {})
    workload = settings.get("workload") or ""
    name = str(workload.get("name", "") if isinstance(workload, dict) else workload)
    if name != WORKLOAD:
        message = f"{run} is a run of {name or 'a script'}: this needs a run of the workload {WORKLOAD}"
        raise UsageError(message, "no_recommender", path=run, workload=name)
    job = JobFile.of(SettingSources(settings)).job()
    model = load(run, cast("Any", weights), into=job)
    found = recommended(job, model, user, count)
    print(json.dumps(found.plain(), allow_nan=False) if as_json else printable(found.text()))
