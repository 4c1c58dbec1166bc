"""Rows whose hash is that of the hidden vector, and some by chance for all the others."""

import logging
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.active import Active
from oddlot.sparse.checks import check_whole
from oddlot.sparse.kernels import hashing, tables
from oddlot.sparse.sampler import Refresh
from oddlot.sparse.samplers.uniform import fill_up
from oddlot.sparse.threads import Crew

BLOCK = 1 << 16
"""rows that are projected at once"""
MOST_BITS = 20
MEASURED, AMONG = 256, 1 << 12
"""vectors by which digits are chosen, and rows, of so many as there are, that they are asked among"""
FEW, MANY = 0.1, 100.0
"""times what is wanted: then the digits are too many, or too few"""
logger = logging.getLogger(__name__)


@dataclass
class LSH:
    """The rows that collide with the hidden vector in one of `tables` hash tables, `found` of them at most.

    A code has `digits` (K of the paper): signs of random projections with `simhash` (Charikar, STOC 2002), places of
    the largest of 8 coordinates with `dwta` (Chen, Shrivastava, UAI 2018). None: as many as leave enough rows to
    find, measured with the last batch when tables are made anew and less than half of what was wanted has been found,
    or functions are drawn anew. Each of `by_chance` other rows stands for many, so that the sum over all rows
    is estimated without bias; Chen et al., "SLIDE" (MLSys 2020), have none of these. Tables are made anew as
    `refresh` says, hash functions every `redraw_every` times. With `changed_only` rows that have been in no active set
    since keep their codes: right with optimizers that leave such rows alone, worth it with tables made anew often.
    """

    family: Literal["simhash", "dwta"] = "simhash"
    digits: int | None = None
    tables: int = 50
    found: int = 200
    by_chance: int = 100
    most_of_bucket: int = 128
    """of a longer one so many, from a random place on"""
    refresh: Refresh = field(default_factory=Refresh)
    redraw_every: int = 20
    changed_only: bool = False
    chosen_digits: int = field(init=False, repr=False, default=0)
    asked: NDArray[Any] | None = field(init=False, repr=False, default=None)
    """the hidden vectors of the last batch"""
    lacks: bool = field(init=False, repr=False, default=False)
    """it found less than half of what was wanted"""
    codes: NDArray[Any] | None = field(init=False, repr=False, default=None)
    """of every table and row, where they are kept"""
    changed: NDArray[Any] | None = field(init=False, repr=False, default=None)
    """which rows have been in an active set since"""

    def __post_init__(self) -> None:
        if self.family not in ("simhash", "dwta"):
            raise ValueError(f"family = {self.family!r} is neither simhash nor dwta")
        check_whole(tables=self.tables, most_of_bucket=self.most_of_bucket, redraw_every=self.redraw_every)
        check_whole(0, found=self.found, by_chance=self.by_chance)
        check_whole(**{"found + by_chance": self.found + self.by_chance})
        if self.digits is not None:
            check_whole(digits=self.digits)
        bits = (self.digits or 1) * (1 if self.family == "simhash" else hashing.BITS)
        if not 0 < bits <= MOST_BITS:
            raise ValueError(
                f"digits = {self.digits}: a code of {bits} bits; from 1 to {MOST_BITS} can be told apart"
            )

    def most(self, out_features: int) -> int:
        return min(self.found + self.by_chance, out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        if not self.refresh.due(step, len(weight)):
            return
        if (self.refresh.times - 1) % self.redraw_every == 0 or (self.lacks and not self.digits):
            self.chosen_digits = self.digits or self._measured(crew, weight, seed)
            if self.digits:
                self._warn_of_digits(crew, weight, seed)
            self._draw(weight.shape[1], self.chosen_digits, seed + self.refresh.times)
            self.codes = None
        codes = self._of_rows(crew, weight)
        self.begins = np.empty((self.tables, (1 << self.bits) + 1), np.int32)
        self.members = np.empty((self.tables, len(weight)), np.int32)
        crew.share(tables.sort_by_code, codes, self.begins, self.members)

    def choose(self, crew: Crew, hidden: NDArray[Any], active: Active, seed: int) -> None:
        crew.share(
            tables.take_found, self._codes(crew, hidden), self.begins, self.members, self.found, self.most_of_bucket,
            active.starts, active.rows, active.counts, active.seen, active.mark, seed,
        )  # fmt: skip
        found = float((active.counts - active.labels).mean()) if len(active.counts) else self.found
        self.asked, self.lacks = (
            hidden.copy() if len(hidden) else self.asked,
            found < min(self.found, active.out_features) / 2,
        )
        fill_up(crew, active, self.by_chance, seed + 1)
        if self.changed is not None:
            crew.share(tables.mark_active, active.starts, active.counts, active.rows, self.changed)

    def forget(self) -> None:
        self.refresh.forget()
        self.asked, self.lacks, self.codes, self.changed = None, False, None, None

    @property
    def bits(self) -> int:
        """Of a code."""
        return self.chosen_digits * (1 if self.family == "simhash" else hashing.BITS)

    def _of_rows(self, crew: Crew, weight: NDArray[Any]) -> NDArray[np.int32]:
        """The codes of all rows as they are now."""
        if self.codes is None or self.changed is None:
            codes = self._codes(crew, weight)
        else:
            codes, rows = self.codes, np.flatnonzero(self.changed)
            codes[:, rows] = self._codes(crew, weight[rows])
        if self.changed_only:
            self.codes, self.changed = codes, np.zeros(len(weight), np.bool_)
        return codes

    def _measured(self, crew: Crew, weight: NDArray[Any], seed: int) -> int:
        """The most digits with which enough is held."""
        per_digit = 1 if self.family == "simhash" else hashing.BITS
        most = max(1, min(MOST_BITS, int(np.log2(max(2, len(weight))))) // per_digit)
        enough = 2 * min(self.found, len(weight))
        digits = next((n for n in range(most, 1, -1) if self._held(crew, weight, n, seed) >= enough), 1)
        logger.info("%s: %d digits in %d tables for %d rows", self.family, digits, self.tables, len(weight))
        return digits

    def _held(self, crew: Crew, weight: NDArray[Any], digits: int, seed: int) -> float:
        """How many rows the buckets of one of the last batch's vectors hold, duplicates counted; at first, when there
        is none, those of a row beside itself."""
        self.chosen_digits = digits
        self._draw(weight.shape[1], digits, seed)
        rows = np.ascontiguousarray(weight[:: max(1, len(weight) // AMONG)])
        queries = rows[:: max(1, len(rows) // MEASURED)] if self.asked is None else self.asked
        codes, asked = self._codes(crew, rows), self._codes(crew, np.ascontiguousarray(queries))
        sizes = (np.bincount(table, minlength=1 << self.bits) for table in codes)
        held = sum(float(size[own].mean()) for size, own in zip(sizes, asked, strict=True))
        return (held - self.tables * (self.asked is None)) * len(weight) / len(rows)

    def _warn_of_digits(self, crew: Crew, weight: NDArray[Any], seed: int) -> None:
        """Those that were chosen by somebody leave buckets empty or overfull."""
        assert self.digits is not None
        held, wanted = self._held(crew, weight, self.digits, seed), min(self.found, len(weight))
        if not FEW * wanted <= held <= MANY * wanted:
            better = self._measured(crew, weight, seed)
            warnings.warn(
                f"{self.tables} hash tables of {self.digits} digits hold {held:.0f} rows for a vector, duplicates "
                f"counted, where {self.found} are wanted: take {better} digits",
                stacklevel=2,
            )
            self.chosen_digits = self.digits

    def _draw(self, columns: int, digits: int, seed: int) -> None:
        chance = np.random.default_rng(seed)
        if self.family == "simhash":
            planes = chance.standard_normal((columns, self.tables * digits)).astype(np.float32)
            self.planes = torch.from_numpy(planes)
            return
        self.order, self.steps = hashing.draw_bins(columns, self.tables * digits, chance)

    def _codes(self, crew: Crew, vectors: NDArray[Any]) -> NDArray[np.int32]:
        """Of every table and vector."""
        codes = np.empty((self.tables, len(vectors)), np.int32)
        if self.family == "dwta":
            crew.share(hashing.largest_in_bins, vectors, self.order, self.steps, codes)
            return codes
        for low in range(0, len(vectors), BLOCK):
            projected = (torch.from_numpy(vectors[low : low + BLOCK]) @ self.planes).numpy()
            crew.share(hashing.pack_signs, projected, codes[:, low : low + BLOCK])
        return codes
