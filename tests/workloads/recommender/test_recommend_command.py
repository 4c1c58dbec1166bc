"""`oddlot recommend`: the best items of a user, from a run folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oddlot.core.support.errors import UsageError
from oddlot.workloads.recommend import Recipe, job_of
from oddlot.workloads.recommender.blocks import Thresholds, split
from oddlot.workloads.recommender.generator import Generator, generate
from oddlot.workloads.recommender.recommending import recommended
from tests.command import Oddlot
from tests.transcripts import raises, transcribe

pytestmark = pytest.mark.filterwarnings("always:NDCG@10 of")
SMALL = Generator(users=60, items=120, lists=2)
FLAGS = [
    "--set",
    "workload.lr=1e-9",
    "--set",
    "workload.users=60",
    "--set",
    "workload.items=200",
    "--epochs",
    "1",
    "--workers",
    "1",
    "--quiet",
]


def test_run_recommends_from_its_folder(oddlot: Oddlot) -> None:
    assert oddlot("train", "recommend", *FLAGS, "--out", "run").code == 0
    done = oddlot("recommend", "run", "--user", "u7", "--json", "--count", "4")
    metrics = json.loads(Path("run/summary.json").read_text())["metrics"]
    assert metrics["ndcg10"] < metrics["ndcg10_popular"]
    assert all(f"{metrics[name]:.3f}" in done.err for name in ("ndcg10", "ndcg10_popular"))
    assert done.code == 0
    found = json.loads(done.out)
    assert (found["user"], found["basis"], len(found["items"])) == ("u7", "history", 4)
    plain = oddlot("recommend", "run", "--user", "u7", "--count", "2")
    assert [line.split()[1] for line in plain.out.splitlines()[1:]] == [
        one["item"] for one in found["items"][:2]
    ]
    Path("titles.csv").write_text("id,title\n" + "".join(f"{at},The {at}\n" for at in range(200)))
    titled = json.loads(oddlot("recommend", "run", "--user", "u7", "--json", "--titles", "titles.csv").out)
    named = [*titled["items"], *(near for one in titled["items"] for near in one["because"])]
    assert len(named) > 20
    assert all(one["title"] == f"The {one['item']}" for one in named)
    Path("titles.csv").write_text("id,title\n3\n")
    oddlot.rejects("unequal_rows", "recommend", "run", "--user", "u7", "--titles", "titles.csv", columns=1)
    unknown = json.loads(oddlot("recommend", "run", "--user", "nobody", "--json").out)
    assert (unknown["basis"], len(unknown["items"])) == ("popularity_unknown_user", 10)
    transcribe(oddlot("recommend", "run", "--user", "nobody", "--count", "2").out)
    oddlot.rejects("no_best_weights", "recommend", "run", "--user", "u7", "--weights", "best", path="run")


def log_of(users: list[str], prefix: str = "i") -> str:
    """Return a file in which each user sees two of six items again and again, and clicks the second one."""
    rows = [
        f"{user},{prefix}{(at + 7 * number) % 6},{at},{at % 2}"
        for number, user in enumerate(users)
        for at in range(4)
    ]
    return "\n".join(["0,1,2,3", *rows, ""])


def test_log_must_be_that_of_the_run(oddlot: Oddlot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("log.csv").write_text(log_of(["a", "b", "c", "d"]))
    columns = {
        "log": "log.csv",
        "user_column": "0",
        "item_column": "1",
        "time_column": "2",
        "click_column": "3",
    }
    options = [part for name, value in columns.items() for part in ("--set", f"workload.{name}={value}")]
    assert oddlot("train", "recommend", *options, *FLAGS[6:], "--out", "run").code == 0
    command = ("recommend", "run", "--user", "a")
    assert oddlot(*command).code == 0
    for text in (log_of(["a", "b", "c", "d", "e"]), log_of(["a", "b", "c", "d"], "j")):
        Path("log.csv").write_text(text)
        oddlot.rejects("other_log", *command, log="log.csv")
    resume = ("--epochs", "2", "--workers", "1", "--quiet", "--out", "run", "--resume", "latest")
    oddlot.rejects("other_log", "train", "recommend", *options, *resume, exit_code=3)
    run = str(Path("run").absolute())
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    oddlot.rejects("unreadable_file", "recommend", run, "--user", "a", path="log.csv")


def test_run_of_another_workload_is_rejected(oddlot: Oddlot) -> None:
    assert (
        oddlot("train", "digits", "--until", "samples>=1", "--workers", "1", "--quiet", "--out", "run").code
        == 0
    )
    oddlot.rejects("no_recommender", "recommend", "run", "--user", "1", path="run", workload="digits")


def model_of(job: Any) -> Any:
    torch.manual_seed(0)
    return job.model().eval()


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(model="attention", width=8, context=6)])
def test_best_items_are_new_and_near_the_clicked_ones(recipe: Recipe) -> None:
    log = generate(SMALL).log
    job = job_of(split(log), recipe)
    model = model_of(job)
    found = recommended(job, model, "u3", 5)
    user = int(np.searchsorted(log.user_ids, "u3"))
    seen, clicked = (
        log.item_ids[log.items[(log.users == user) & of]] for of in (log.items >= 0, log.clicked)
    )
    new = set(log.item_ids[split(log).train.items]) - set(seen)
    assert {one.item for one in recommended(job, model, "u3", 1_000).items} == new
    assert [one.score for one in found.items] == sorted((one.score for one in found.items), reverse=True)
    vectors = model.item_matrix().detach()
    for one in found.items:
        at = torch.from_numpy(np.searchsorted(log.item_ids, [one.item, *np.unique(clicked)]))
        cosines = torch.cosine_similarity(vectors[at[:1]], vectors[at[1:]])
        best = cosines.topk(min(3, len(cosines)))
        wanted: list[Any] = [
            (str(np.unique(clicked)[at]), pytest.approx(value, abs=1e-5))
            for value, at in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        assert [(near.item, near.similarity) for near in one.because] == wanted


def test_user_outside_the_thresholds_gets_popular_items() -> None:
    log = generate(SMALL).log
    counts = job_of(split(log), Recipe()).train_data.rows.counts
    most = int(counts.argmax())
    limits = Thresholds(0, float(counts[most]) - 1)
    job = job_of(split(log), Recipe(thresholds=limits))
    found = recommended(job, model_of(job), str(log.user_ids[most]), 3)
    train = split(log).train
    clicks = np.bincount(train.items[train.clicked])
    assert found.basis == "popularity_dropped_user"
    assert [one.score for one in found.items] == sorted(clicks, reverse=True)[:3]
    attention = job_of(split(log), Recipe(model="attention", width=8, thresholds=limits))
    assert recommended(attention, model_of(attention), str(log.user_ids[most])).basis == "history"
    with raises(UsageError, "invalid_value", name="count"):
        recommended(job, model_of(job), "u1", 0)
