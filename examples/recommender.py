"""A recommender on a generated log of clicks. Most of the clicks come from bots.

A tenth of the users are bots. They start in the second half of the log and click ten items. Thresholds on the number of
blocks of a user, taken from the first half of the log, leave out their updates on the workers.
"""

from typing import Any

import oddlot
from oddlot.workloads import load_workload
from oddlot.workloads.recommender.recommending import recommended

LOG: dict[str, Any] = {"users": 500, "items": 200, "bots": 0.1}
THRESHOLDS = {"low_percentile": 5.0, "high_percentile": 95.0, "thresholds_from": "0.5"}

for name, options in {"without thresholds": LOG, "with thresholds": LOG | THRESHOLDS}.items():
    job = load_workload("recommend", options)
    run = oddlot.fit(job, oddlot.Synchronous(), engine=oddlot.Local(workers=2), until="epochs>=8")
    found = run.history[-1]
    print(f"{name}: {found['dropped_users']:.0f} of {len(job.train_data)} users are left out")
    print(
        f"  NDCG@10 {found['ndcg10']:.3f}, random {found['ndcg10_random']:.3f}, popular {found['ndcg10_popular']:.3f}"
    )

best = recommended(job, run.model, "u7", count=3)
print(f"the best items for u7, by {best.basis}:")
for one in best.items:
    print(f"  {one.item}: near {', '.join(near.item for near in one.because)}")
