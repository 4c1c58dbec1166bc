"""The best items of a user, and the clicked items that are nearest to each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from oddlot.core.support.errors import InvalidValue
from oddlot.workloads.recommender.click_log import other_log
from oddlot.workloads.recommender.samples import HeldOutUsers, TrainUsers

if TYPE_CHECKING:
    from oddlot.train.job import Job

NEAREST = 3
"""Number of clicked items that explain a recommended one."""
Basis = Literal["history", "popularity_unknown_user", "popularity_dropped_user"]
"""`history` of the user, or popularity: the training part does not have the user, or the thresholds leave it out."""


@dataclass(frozen=True)
class Neighbor:
    """A clicked item, with the cosine similarity of its vector to the vector of a recommended item."""

    item: str
    similarity: float
    title: str = ""


@dataclass(frozen=True)
class Recommended:
    """A recommended item. The score is the number of clicks if the basis is popularity."""

    item: str
    score: float
    because: Sequence[Neighbor] = ()
    title: str = ""


@dataclass(frozen=True)
class Recommendation:
    """The best items for a user, the best first."""

    user: str
    basis: Basis
    items: Sequence[Recommended]

    def with_titles(self, titles: Mapping[str, str]) -> Self:
        """Return the recommendation with the titles of its items, if they are known."""

        def near(one: Neighbor) -> Neighbor:
            return replace(one, title=titles.get(one.item, ""))

        items = [
            replace(one, title=titles.get(one.item, ""), because=[*map(near, one.because)])
            for one in self.items
        ]
        return replace(self, items=items)

    def plain(self) -> dict[str, Any]:
        """Return the recommendation as plain data."""
        return asdict(self)

    def text(self) -> str:
        """Return the recommendation as text, with an item on each line."""
        if self.basis == "history":
            first = f"user {self.user}: best items, and the nearest items that the user has clicked"
        elif self.basis == "popularity_unknown_user":
            first = f"user {self.user} is not in the training part of the log. The most popular items:"
        else:
            first = (
                f"user {self.user} is outside the thresholds of blocks: not trained. The most popular items:"
            )
        lines = [first]
        for place, one in enumerate(self.items, 1):
            reasons = ", ".join(f"{_named(near)} ({near.similarity:.2f})" for near in one.because)
            number = f"{one.score:.3f}" if self.basis == "history" else f"{one.score:,.0f} clicks"
            lines.append(f"{place:3}  {_named(one)}  {number}" + (f"  near {reasons}" if reasons else ""))
        return "\n".join(lines)


def _named(one: Neighbor | Recommended) -> str:
    return f"{one.item} {one.title}".rstrip()


def recommended(job: "Job", model: Any, user: str, count: int = 10) -> Recommendation:
    """Return the best items for a user that the user has not seen in the log.

    An unknown user gets the most popular items. With a model that has a vector for each user, a user outside the
    thresholds gets them too.

    Raises:
        InvalidValue: `count` is below 1.
        UsageError: The model was trained on another log.
    """
    if count < 1:
        raise InvalidValue("count", count, "at least 1")
    trained, tested = job.train_data, job.eval_data
    assert isinstance(trained, TrainUsers)
    assert isinstance(tested, HeldOutUsers)
    log, step = trained.rows.log, job.training_step
    if int(model.log_digest) != log.digest:
        raise other_log()
    index = int(np.searchsorted(log.user_ids, user))
    is_known = index < len(log.user_ids) and log.user_ids[index] == user and index in trained.users
    basis: Basis = "history" if is_known else "popularity_unknown_user"
    if is_known and hasattr(model, "user") and not step.thresholds.keeps(trained.rows.counts[[index]])[0]:  # type: ignore[union-attr]  # a Loss
        basis = "popularity_dropped_user"
    if basis != "history":
        clicks = torch.from_numpy(np.bincount(log.items[log.clicked], minlength=len(log.item_ids))).float()
        return Recommendation(
            user, basis, [Recommended(item, score) for item, score, _ in _best(log.item_ids, clicks, count)]
        )
    batch = tested.of_users(np.array([index]))
    with torch.no_grad():
        scores, matrix = model.scores(model.history(batch))[0], model.item_matrix()
        vectors = torch.nn.functional.normalize(matrix, dim=1)
    allowed = job.predict.is_candidate.clone()  # type: ignore[union-attr]  # a Prediction
    rows = [part.log.rows(part.log.users == index) for part in (tested.train, tested.test)]
    seen, clicked = (
        np.concatenate(each) for each in ([r.items for r in rows], [r.items[r.clicked] for r in rows])
    )
    allowed[torch.from_numpy(seen)] = False
    history = torch.from_numpy(np.unique(clicked))
    best = _best(log.item_ids, scores.masked_fill(~allowed, -torch.inf), count)
    return Recommendation(
        user,
        basis,
        [Recommended(item, score, _nearest(log.item_ids, vectors, at, history)) for item, score, at in best],
    )


def _best(ids: Any, scores: Tensor, count: int) -> list[tuple[str, float, int]]:
    """Return the ids, finite scores and indices of the items with the largest scores."""
    values, places = scores.topk(min(count, len(scores)))
    pairs = zip(values.tolist(), places.tolist(), strict=True)
    return [(str(ids[place]), value, place) for value, place in pairs if np.isfinite(value)]


def _nearest(ids: Any, vectors: Tensor, item: int, history: Tensor) -> list[Neighbor]:
    """Return the clicked items with vectors of the largest cosine to that of an item."""
    cosines = vectors[history] @ vectors[item]
    values, places = cosines.topk(min(NEAREST, len(history)))
    return [
        Neighbor(str(ids[history[place]]), value)
        for value, place in zip(values.tolist(), places.tolist(), strict=True)
    ]
