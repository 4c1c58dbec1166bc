"""Generated logs of clicks: latent tastes, popular items, position bias and bots."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oddlot.core.support.errors import InvalidValue
from oddlot.workloads.recommender.click_log import ClickLog

DAY = 86_400.0


@dataclass(frozen=True)
class Generator:
    """Settings of a generated log.

    A user sees lists of items at random times, from the first place to the last, and no item twice. Popular items are
    shown more often. A place is noticed with probability (place + 1) ** -position_bias, and a noticed item is clicked
    with probability sigmoid(taste * u.v / sqrt(tastes) + b - threshold). The vectors u of users and v of items, and the
    popularity b of items, are normal.

    A share `bots` of the users are bots. They start after `clean` of the days. The clicks of a bot are a multiple of
    those of the mean user, in the range `bot_clicks` (uniform in the logarithm). A bot always clicks on one of
    `targets` items, each time after `decoys` other items. Targets are drawn from the less popular half of the items.
    """

    users: int = 2_000
    """Number of users that are not bots."""
    items: int = 1_000
    bots: float = 0.0
    """Share of bots among all users."""
    bot_clicks: tuple[float, float] = (10.0, 100.0)
    """Smallest and largest number of clicks of a bot / mean number of clicks of a user."""
    lists: float = 8.0
    """Mean number of lists of a user. At least 2 each."""
    length: int = 10
    """Number of items of a list."""
    tastes: int = 8
    """Number of dimensions of tastes."""
    taste: float = 2.5
    popularity: float = 0.7
    """Standard deviation of the popularity of items."""
    threshold: float = 1.0
    position_bias: float = 0.5
    days: float = 30.0
    targets: int = 10
    decoys: int = 3
    clean: float = 0.5
    """Share of the days before the bots start."""

    def check(self) -> None:
        """Raise InvalidValue for a setting out of range."""
        for name in ("users", "items", "length", "tastes", "targets", "decoys"):
            if getattr(self, name) < 1:
                raise InvalidValue(name, getattr(self, name), "at least 1")
        if not 0 <= self.bots < 1:
            raise InvalidValue("bots", self.bots, "at least 0 and below 1")
        if not 0 < self.bot_clicks[0] <= self.bot_clicks[1]:
            raise InvalidValue("bot_clicks", self.bot_clicks, "two numbers above 0, the smaller one first")
        if self.items < 2 * self.length:
            raise InvalidValue("items", self.items, f"at least {2 * self.length}, two lists")


@dataclass(frozen=True)
class Generated:
    """A generated log. Ids of users start with `u` or, for bots, with `bot`."""

    log: ClickLog
    targets: NDArray[np.str_]
    """Ids of the items that bots click."""

    @property
    def is_bot(self) -> NDArray[np.bool_]:
        """Whether each user of the log is a bot, [users]."""
        return np.char.startswith(self.log.user_ids, "bot")


def generate(settings: Generator, seed: int = 0) -> Generated:
    """Return a generated log. The rows of users are the same with any share of bots.

    Raise InvalidValue if a setting is out of range.
    """
    settings.check()
    of_users, of_bots = (np.random.Generator(np.random.PCG64([seed, stream])) for stream in range(2))
    popularity = settings.popularity * of_users.standard_normal(settings.items)
    parts = [_users(settings, popularity, of_users)]
    unpopular = np.argsort(popularity)[: max(1, settings.items // 2)]
    targets = np.sort(of_bots.permutation(unpopular)[: settings.targets])
    if bots := round(settings.users * settings.bots / (1 - settings.bots)):
        clicks = parts[0][3].sum() / settings.users
        parts.append(_bots(settings, bots, clicks, targets, of_bots))
    users, items, times, clicked = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Generated(ClickLog.of(users, items, times, clicked), targets.astype(np.str_))


Rows = tuple[NDArray[np.str_], NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]
"""User, item, time and click of each row."""


def _users(settings: Generator, popularity: NDArray[np.float64], random: np.random.Generator) -> Rows:
    """Return the rows of the users that are not bots."""
    tastes = settings.tastes
    of_items = random.standard_normal((settings.items, tastes))
    users, items, times, clicked = [], [], [], []
    noticed = (np.arange(settings.length) + 1.0) ** -settings.position_bias
    for user in range(settings.users):
        most = settings.items // settings.length
        lists = int(np.clip(2 + random.geometric(1 / max(1.0, settings.lists - 1)) - 1, 2, most))
        order = np.argsort(-popularity - random.gumbel(size=settings.items))  # without replacement
        shown = order[: lists * settings.length]
        scores = settings.taste / tastes**0.5 * of_items[shown] @ random.standard_normal(tastes)
        chance = 1 / (1 + np.exp(settings.threshold - scores - popularity[shown]))
        start = np.sort(random.uniform(0, settings.days * DAY, lists))
        shown = random.permutation(lists * settings.length)  # popular items are not only in the first lists
        items.append(order[: lists * settings.length][shown])
        clicked.append(random.random(len(shown)) < chance[shown] * np.tile(noticed, lists))
        times.append(np.repeat(start, settings.length) + np.tile(np.arange(settings.length), lists))
        users.append(np.full(len(shown), f"u{user}"))
    return tuple(np.concatenate(part) for part in (users, items, times, clicked))  # type: ignore[return-value]


def _bots(
    settings: Generator,
    bots: int,
    mean_clicks: float,
    targets: NDArray[np.int64],
    random: np.random.Generator,
) -> Rows:
    """Return the rows of bots."""
    low, high = (float(np.log10(one)) for one in settings.bot_clicks)
    multiple = 10 ** random.uniform(low, high, bots)
    clicks = np.maximum(1, mean_clicks * multiple).astype(np.int64)
    total, size = int(clicks.sum()), settings.decoys + 1
    others = np.setdiff1d(np.arange(settings.items), targets)
    items = random.choice(others, (total, size))
    items[:, -1] = random.choice(targets, total)
    starts = random.uniform(settings.clean * settings.days * DAY, settings.days * DAY, total)
    times = starts[:, None] + np.arange(size)
    clicked = np.zeros((total, size), np.bool_)
    clicked[:, -1] = True
    users = np.repeat([f"bot{number}" for number in range(bots)], clicks * size)
    return users, items.ravel(), times.ravel(), clicked.ravel()
