"""Tests of the workload `recommend`: options, thresholds, training and bad logs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oddlot import VCASGD, Asynchronous, FastestK, LocalSGD, Machine, Simulated, Synchronous, fit
from oddlot.core.support.errors import OddlotWarning, UsageError
from oddlot.faults import Chaos, Fault
from oddlot.train.job import Job
from oddlot.workloads.recommend import Loss, Recipe, job_of, recommend
from oddlot.workloads.recommender.blocks import Thresholds, split
from oddlot.workloads.recommender.click_log import ClickLog
from oddlot.workloads.recommender.generator import Generator, generate
from oddlot.workloads.recommender.metrics import METRICS, measured
from tests.transcripts import raises

SMALL = Generator(users=120, items=80)


def trained(job: Job, strategy: Any = None, epochs: int = 3, machines: int = 1) -> Any:
    engine = Simulated([Machine(f"m{one}", seconds_per_sample=0.01) for one in range(machines)])
    return fit(job, strategy or Synchronous(), engine=engine, until=f"epochs>={epochs}", seed=0)


def test_generated_log_trains_and_beats_random_scores() -> None:
    job = recommend(users=300, items=100, lr=30.0)
    run = trained(job, epochs=6)
    metrics = run.history[-1]
    assert metrics["ndcg10"] > 1.2 * metrics["ndcg10_random"]
    assert metrics["unseen_items"] == 0
    assert {f"{name}_popular" for name in METRICS} <= set(metrics)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe("softmax", dense_items=1, active=20),
        Recipe("softmax", "attention", width=8, context=6, optimizer="adam", lr=0.01),
        Recipe(
            "softmax", "attention", width=8, context=6, optimizer="adam", lr=0.01, dense_items=1, active=20
        ),
        Recipe("bpr", momentum=0.9),
    ],
    ids=["sampled", "attention", "sampled attention", "momentum"],
)
def test_every_model_and_loss_learns(recipe: Recipe) -> None:
    job = job_of(split(generate(SMALL).log), replace(recipe, batch_size=16))
    losses = [row["loss"] for row in trained(job, epochs=4).history]
    assert losses[-1] < losses[0]


def dropping(low: int = 0, high: int = 10**9, lr: float = 10.0) -> tuple[Job, np.ndarray[Any, Any]]:
    """Return a job with thresholds, and the indices of the users that it drops."""
    parts = split(generate(SMALL).log)
    job = job_of(parts, Recipe("saros", thresholds=Thresholds(low, high), decay=0.01, lr=lr, batch_size=16))
    counts = job.train_data.rows.counts
    return job, np.flatnonzero((counts < low) | (counts > high))


@pytest.mark.parametrize("strategy", [Synchronous(), Asynchronous()])
def test_users_outside_the_thresholds_do_not_change_the_model(strategy: Any) -> None:
    job, dropped = dropping(5, 12)
    assert 10 < len(dropped) < 80
    run = trained(job, strategy, machines=2)
    start = fit(
        job, strategy, engine=Simulated([Machine("m", seconds_per_sample=0.01)]), until="samples>=1", seed=0
    ).model
    end, begin = (one.get_parameter("user.weight") for one in (run.model, start))
    after, before = end[dropped], begin[dropped]
    torch.testing.assert_close(after, before)
    kept = np.setdiff1d(np.arange(len(job.train_data.rows.log.user_ids)), dropped)
    assert (end[kept] != begin[kept]).any(1).sum() > len(kept) // 2
    assert run.history[-1]["dropped_users"] == len(np.intersect1d(dropped, job.train_data.users))


@pytest.mark.parametrize(
    "strategy",
    [Synchronous(), Asynchronous(), FastestK(k=1), LocalSGD(steps=2), VCASGD()],
    ids=lambda strategy: type(strategy).__name__,
)
def test_users_of_a_lost_worker_go_to_another_one(strategy: Any) -> None:
    (job, dropped), (still, _) = dropping(5, 12), dropping(5, 12, lr=1e-12)
    machines = Simulated([Machine(name, seconds_per_sample=0.01) for name in ("m0", "m1")])
    kill = Chaos([Fault("kill", "m1", at_seconds=(0.1,))])
    options: dict[str, Any] = {
        "engine": machines,
        "until": "epochs>=1",
        "seed": 0,
        "shards": 8,
        "chaos": kill,
    }
    run = fit(job, strategy, **options)
    moved = run.model.get_parameter("user.weight") - fit(still, strategy, **options).model.get_parameter(
        "user.weight"
    )
    kept = np.setdiff1d(job.train_data.users, dropped)
    assert (moved[kept].abs().amax(1) > 1e-6).all()
    assert run.summary["wasted"]["lost"] > 0


def test_minibatch_of_dropped_users_has_weight_0() -> None:
    job, dropped = dropping(5, 12)
    at = np.flatnonzero(np.isin(job.train_data.users, dropped))[:4]
    assert job.weighted_loss(job.model(), job.train_data.__getitems__(at)).weight == 0


def written(folder: Path, rows: list[str], header: str = "user,item,time,click") -> str:
    path = folder / "log.csv"
    path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    return str(path)


def rows_of(generated: ClickLog) -> list[str]:
    names = zip(generated.user_ids[generated.users], generated.item_ids[generated.items], strict=True)
    pairs = zip(names, generated.times, generated.clicked, strict=True)
    return [f"{user},{item},{time},{int(click)}" for (user, item), time, click in pairs]


def test_file_gives_the_job_of_its_rows(tmp_path: Path) -> None:
    log = generate(SMALL).log
    path = written(tmp_path, rows_of(log))
    job = recommend(path, click_column="click", low_percentile=10, high_percentile=90, momentum=0.9)
    np.testing.assert_array_equal(job.train_data.rows.log.items, split(log).train.items)
    counts = job.train_data.rows.counts
    assert isinstance(job.training_step, Loss)
    low, high = np.percentile(counts[counts > 0], [10, 90])
    assert job.training_step.thresholds == Thresholds(np.floor(low), np.ceil(high))
    assert (job.optimizer.lr, job.optimizer.momentum) == (pytest.approx(3.0), 0.9)


def test_rows_that_change_are_warned_of(tmp_path: Path) -> None:
    rows = rows_of(generate(SMALL).log)
    path = written(tmp_path, [*rows[::-1], rows[0], ",x,1,1", "u1,,1,1"])
    with pytest.warns(OddlotWarning) as caught:
        recommend(path, click_column="click")
    (warning,) = (one.message for one in caught)
    assert isinstance(warning, OddlotWarning)
    counts = {"skipped": 2, "duplicates": 1, "is_ordered": False}
    assert (warning.code, warning.fields) == ("log_changed_on_reading", {"path": path, **counts})


def test_errors_about_rows_name_the_log(tmp_path: Path) -> None:
    for rows in (["a,x,soon,1"], ["a,x,1,1"], ["a,x,1,1", "a,y,2,1"]):  # a bad time, one block, no negatives
        with pytest.raises(UsageError) as raised:
            recommend(written(tmp_path, rows), click_column="click")
        assert raised.value.key == "log"


def test_popularity_counts_training_clicks() -> None:
    job = job_of(parts := split(generate(SMALL).log), Recipe())
    train = parts.train
    clicks = torch.zeros(len(train.item_ids))
    for item in train.items[train.clicked]:
        clicks[item] += 1
    candidates = torch.from_numpy(np.isin(np.arange(len(clicks)), train.items))
    found = measured(job.eval_data, candidates, lambda batch: clicks.expand(len(batch["users"]), -1))
    floors: Any = job.metrics
    assert {name: floors[f"{name}_popular"].value for name in found} == found


def test_only_test_users_that_are_given_are_tested() -> None:
    parts = split(generate(SMALL).log)
    given = np.zeros(len(parts.train.user_ids), np.bool_)
    given[:40] = True
    tested = job_of(parts, Recipe(), given).eval_data.users
    assert 20 < len(tested) <= 40
    assert tested.max() < 40


@pytest.mark.parametrize(("loss", "name"), [("saros", "blocks"), ("bpr", "clicks")])
def test_training_reports_the_number_of_blocks_or_clicks(loss: str, name: str) -> None:
    job = job_of(split(generate(SMALL).log), Recipe(loss))
    found = job.weighted_loss(job.model(), job.train_data.__getitems__(range(20)))
    assert found.others == {name: found.weight}
    assert not job.weighted_loss(job.model().eval(), job.train_data.__getitems__(range(20))).others


def test_thresholds_are_given_or_of_an_early_part() -> None:
    kinds = [{"min_blocks": 3, "max_blocks": 7}, {"high_percentile": 95.0}]
    kinds.append({"high_percentile": 95.0, "thresholds_from": "0.5"})
    found = [recommend(bots=0.1, **options).training_step.thresholds for options in kinds]  # type: ignore[arg-type,union-attr]
    assert found[0] == Thresholds(3, 7)
    assert found[2].high < found[1].high / 3, "bots are in the percentile of the complete log"


def test_log_without_negatives_has_other_losses(tmp_path: Path) -> None:
    log = generate(SMALL).log
    path = written(tmp_path, rows_of(log.rows(log.clicked)))
    with raises(UsageError, "no_negatives"):
        recommend(path)
    for loss in ("bpr", "softmax"):
        assert trained(recommend(path, loss=loss), epochs=1).history[-1]["ndcg10"] > 0


@pytest.mark.parametrize(
    ("options", "code", "fields"),
    [
        ({"loss": "sarso"}, "unknown_name", {"kind": "loss", "nearest": "saros"}),
        ({"model": "attentoin"}, "unknown_name", {"kind": "model", "nearest": "attention"}),
        ({"width": 0}, "invalid_value", {"name": "width"}),
        ({"width": 7, "model": "attention"}, "invalid_value", {"name": "width"}),
        ({"low_percentile": 101.0}, "invalid_value", {"name": "low_percentile"}),
        ({"low_percentile": 90.0, "high_percentile": 10.0}, "invalid_value", {"name": "low_percentile"}),
        ({"min_blocks": 5, "max_blocks": 4}, "invalid_value", {"name": "max_blocks"}),
        ({"max_blocks": -1}, "invalid_value", {"name": "max_blocks"}),
        ({"low_percentile": 5.0, "thresholds_from": "May"}, "invalid_value", {"name": "thresholds_from"}),
        ({"decay": -1.0}, "invalid_value", {"name": "decay"}),
        ({"lr": -1.0}, "invalid_value", {"name": "lr"}),
        ({"negatives": "al"}, "unknown_name", {"kind": "negatives", "nearest": "all"}),
        ({"min_blocks": 5_000}, "invalid_value", {"name": "min_blocks", "given": 5_000}),
    ],
)
def test_invalid_option_is_rejected(options: dict[str, Any], code: str, fields: dict[str, Any]) -> None:
    with raises(UsageError, code, **fields):
        recommend(users=60, items=40, **options)


def test_item_that_only_the_test_has_is_counted_and_not_recommended(tmp_path: Path) -> None:
    rows = [f"{user},{item},{at},{at % 2}" for user in "ab" for at, item in enumerate("pqrs")]
    rows += ["a,new,9,0", "a,newer,10,1", "b,t,9,0", "b,p,10,1"]
    with raises(UsageError, "no_test_items", rows=4):  # b has seen p, and training lacks newer
        recommend(written(tmp_path, rows), click_column="click")
    early = ["a,t,1.5,0", *rows]
    early.sort(key=lambda row: float(row.split(",")[2]))
    job = recommend(written(tmp_path, [*early, "b,t,11,1"]), click_column="click")
    outputs = trained(job, epochs=1).history[-1]
    assert (outputs["unseen_items"], outputs["unseen_users"]) == (2, 0)
    assert len(job.eval_data) == 1
    names = job.train_data.rows.log.item_ids[job.eval_data[0]["test_items"]]
    assert names.tolist() == [["t", "t"]]


def test_user_with_thousands_of_blocks_is_trained(tmp_path: Path) -> None:
    rows = [f"long,{(7 * at) % 90},{at},{at % 2}" for at in range(6_000)]
    rows += [f"u{user},{(user + 3 * at) % 90},{at},{at % 2}" for user in range(20) for at in range(8)]
    path = written(tmp_path, rows)
    for options in ({}, {"model": "attention", "width": 8}):
        job = recommend(path, click_column="click", **options)  # type: ignore[arg-type]
        assert job.weighted_loss(job.model(), job.train_data[0]).weight == 2_999
    gated = recommend(path, click_column="click", max_blocks=100)
    assert gated.weighted_loss(gated.model(), gated.train_data[0]).weight == 0
