"""Rows whose hash is that of the hidden vector, and some by chance for all the others."""

import logging
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.active_set import Active
from oddlot.sparse.errors import coded, invalid_value
from oddlot.sparse.frequency_draws import Frequencies
from oddlot.sparse.kernels import hashing, tables
from oddlot.sparse.memory import check_memory
from oddlot.sparse.sampler import Refresh, check_refresh
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import check_flag, check_number, check_whole, warn

PROJECTED = 1 << 26
"""signs that are found at once, of as many rows as that is"""
MAX_BITS, MAX_TABLES = 20, 50
ENOUGH = 2
"""times what is wanted, duplicates counted: of these tables find each row more than once"""
MEASURED, AMONG = 256, 1 << 12
"""vectors by which digits are chosen, and rows, of so many as there are, that they are asked among"""
FEW, MANY = 0.1, 100.0
"""times what is wanted: then buckets are empty, or overfull"""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """K and L, and what they find."""

    digits: int
    tables: int
    taken: float = 0.0
    """rows for half of the vectors at least, duplicates counted"""
    held: float = 0.0
    """rows in the buckets of a vector in the mean, of which long ones do not give all"""

    def __str__(self) -> str:
        gives = f"a vector {self.taken:.0f} of {self.held:.0f} rows (duplicates counted)"
        return f"{self.digits} digits in {self.tables} tables give {gives}"


@dataclass
class LSH:
    """The rows that collide with the hidden vector in one of `tables` hash tables, `found` of them at most.

    A code has `digits` (K of the paper; `tables` is L): signs of random projections with `simhash` (Charikar, STOC
    2002), places of the largest of 8 coordinates with `dwta` (Chen, Shrivastava, UAI 2018). What is None is measured
    with the last batch when functions are drawn anew, or tables are and less than half of what was wanted has been
    found: the most digits with which 50 tables hold enough, and the fewest of these tables that do.

    Rows of `by_chance` draws, in which those that are labels more often are more likely (see `Unigram`), stand for
    all others, so that the sum over all rows is estimated without bias; Chen et al., "SLIDE" (MLSys 2020), have
    none of these. Tables are made anew as `refresh` says, hash functions every `redraw_every` times. With
    `changed_only` rows that have been in no active set since keep their codes: right with optimizers that leave
    such rows alone and where each loss's backward comes before the next loss, worth it where few of very many do.
    """

    family: Literal["simhash", "dwta"] = "simhash"
    digits: int | None = None
    tables: int | None = None
    found: int = 200
    by_chance: int = 100
    frequency: float = 0.8
    """the share of these draws that goes by how often rows are labels; 0: rows that are all alike, each once"""
    most_of_bucket: int = 128
    """of a longer one so many, from a random place on"""
    refresh: Refresh = field(default_factory=Refresh)
    redraw_every: int = 5
    changed_only: bool = False
    counts: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    """how often each row is a label, where that is known; None: it is counted as labels come"""
    chosen: Choice = field(init=False, repr=False, compare=False, default_factory=lambda: Choice(0, 0))
    warned: bool = field(init=False, repr=False, compare=False, default=False)
    asked: NDArray[Any] | None = field(init=False, repr=False, compare=False, default=None)
    """the hidden vectors of the last batch"""
    lacks: bool = field(init=False, repr=False, compare=False, default=False)
    """it found less than half of what was wanted"""
    codes: NDArray[Any] | None = field(init=False, repr=False, compare=False, default=None)
    """of every table and row, where they are kept"""
    changed: NDArray[Any] | None = field(init=False, repr=False, compare=False, default=None)
    """which rows have been in an active set since"""

    def __post_init__(self) -> None:
        if self.family not in ("simhash", "dwta"):
            raise invalid_value("family", self.family, "simhash or dwta")
        check_whole(found=self.found, most_of_bucket=self.most_of_bucket, redraw_every=self.redraw_every)
        check_whole(0, by_chance=self.by_chance)
        check_number(0, 1, frequency=self.frequency)
        check_refresh(self.refresh)
        self.refresh = copy(self.refresh)  # which counts: it may be another sampler's too
        check_flag(changed_only=self.changed_only)
        self.frequencies = Frequencies(self.frequency, self.counts)
        for name in ("digits", "tables"):
            if (chosen := getattr(self, name)) is not None:
                check_whole(**{name: chosen})
        bits = (self.digits or 1) * (1 if self.family == "simhash" else hashing.BITS)
        if not 0 < bits <= MAX_BITS:
            told = f"digits = {self.digits}: a code of {bits} bits; from 1 to {MAX_BITS} can be told apart"
            raise coded(ValueError(told), "code_too_long", digits=self.digits, bits=bits, most=MAX_BITS)

    def most(self, out_features: int) -> int:
        return min(self.found + self.by_chance, out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        if not self.refresh.due(step, len(weight)):
            return
        could_be_better = not (self.digits and self.tables and self.warned)
        if (self.refresh.times - 1) % self.redraw_every == 0 or (self.lacks and could_be_better):
            self._check_memory(*weight.shape)
            self._draw(weight.shape[1], self._choice(crew, weight, seed), seed)
            self.codes = None
        self.frequencies.count_up(len(weight), self.by_chance)
        codes = self._of_rows(crew, weight)
        self.begins = np.empty((len(codes), (1 << self.bits) + 1), np.int32)
        self.members = np.empty((len(codes), len(weight)), np.int32)
        crew.share(tables.sort_by_code, codes, self.begins, self.members)

    def choose(self, crew: Crew, hidden: NDArray[Any], active: Active, seed: int) -> None:
        others = active.counts.copy()  # labels, and what other samplers have found
        crew.share(
            tables.take_found, self._codes(crew, hidden), self.begins, self.members, self.found, self.most_of_bucket,
            active.starts, active.rows, active.counts, active.seen, active.mark, seed,
        )  # fmt: skip
        found = float((active.counts - others).mean()) if len(active.counts) else self.found
        if active.learns and len(hidden):
            self.asked, self.lacks = (
                hidden[:MEASURED].copy(),
                found < min(self.found, active.out_features) / 2,
            )
        rows = active.out_features
        self.frequencies.fill_up(crew, active, seed + 1, 1, self.most(rows) == rows)
        if self.changed is not None and active.learns:
            crew.share(tables.mark_active, active.starts, active.counts, active.rows, self.changed)

    def forget(self) -> None:
        self.refresh.forget()
        self.frequencies.forget()
        self.asked, self.lacks, self.codes, self.changed, self.warned = None, False, None, None, False

    @property
    def bits(self) -> int:
        """Of a code."""
        return self.chosen.digits * (1 if self.family == "simhash" else hashing.BITS)

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

    def _choice(self, crew: Crew, weight: NDArray[Any], seed: int) -> Choice:
        """K and L; where somebody has set one with which too little or too much is found, it is said what is better."""
        wanted, has = self._wanted(weight), self._measured(crew, weight, seed, self.digits, self.tables)
        logger.info("%s for %d rows: %s", self.family, len(weight), has)
        fits = FEW * wanted <= has.taken and has.held <= MANY * wanted
        if (self.digits or self.tables) and not fits and not self.warned:
            self.warned, better = True, self._measured(crew, weight, seed)
            take = {"digits": better.digits, "tables": better.tables}
            told = "take {digits} digits, {tables} tables".format(**take)
            warn(f"{has}, where {wanted} are wanted: {told}", "unsuitable_tables", wanted=wanted, **take)
        return has

    def _measured(
        self, crew: Crew, weight: NDArray[Any], seed: int, digits: int | None = None, count: int | None = None
    ) -> Choice:
        """What has been set and, for what has not, the most digits, and then the fewest tables, with which enough is
        found."""
        per_digit = 1 if self.family == "simhash" else hashing.BITS
        most = max(1, min(MAX_BITS, int(np.log2(max(2, len(weight))))) // per_digit)
        enough = ENOUGH * self._wanted(weight)
        for tried in range(most, 0, -1) if digits is None else (digits,):
            self._draw(weight.shape[1], Choice(tried, count or MAX_TABLES), seed)
            taken, held = self._in_tables(crew, weight)
            if taken[-1] >= enough:
                break
        few = count or min(int(np.searchsorted(taken, enough)) + 1, MAX_TABLES)
        return Choice(tried, few, float(taken[few - 1]), float(held[few - 1]))

    def _check_memory(self, rows: int, columns: int) -> None:
        """MemoryError: the tables, and the codes that they are made of, need more than this machine has."""
        count, digits = self.tables or MAX_TABLES, self.digits or 1
        per_digit = 1 if self.family == "simhash" else hashing.BITS
        buckets = 1 << self.digits * per_digit if self.digits else rows
        needs = 4 * count * (2 * rows + buckets + columns * digits)
        check_memory(needs, f"{count:,} tables of {rows:,} rows in {buckets:,} buckets")

    def _wanted(self, weight: NDArray[Any]) -> int:
        return min(self.found, len(weight))

    def _in_tables(self, crew: Crew, weight: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rows that the median of the last batch's vectors is given by the first tables, and that its buckets hold in
        the mean, duplicates counted; at first, when there is no such vector, a row and those beside it."""
        rows = np.ascontiguousarray(weight[:: max(1, len(weight) // AMONG)])
        queries = rows[:: max(1, len(rows) // MEASURED)] if self.asked is None else self.asked
        codes, asked = self._codes(crew, rows), self._codes(crew, np.ascontiguousarray(queries))
        sizes = (np.bincount(table, minlength=1 << self.bits) for table in codes)
        each = np.array([size[own] for size, own in zip(sizes, asked, strict=True)])
        held = (each - (self.asked is None)) * len(weight) / len(rows)
        given = np.cumsum(np.minimum(held, self.most_of_bucket), axis=0)
        return np.median(given, axis=1), np.cumsum(held.mean(axis=1))

    def _draw(self, columns: int, choice: Choice, seed: int) -> None:
        """Hash functions for this choice; with simhash those of the first tables do not depend on how many there
        are."""
        self.chosen, chance, count = choice, np.random.default_rng(seed), choice.tables * choice.digits
        if self.family == "simhash":
            planes = chance.standard_normal((count, columns)).astype(np.float32)
            self.planes = torch.from_numpy(np.ascontiguousarray(planes.T))
            return
        self.order, self.steps = hashing.draw_bins(columns, count, chance)

    def _codes(self, crew: Crew, vectors: NDArray[Any]) -> NDArray[np.int32]:
        """Of every table and vector."""
        codes = np.empty((self.chosen.tables, len(vectors)), np.int32)
        if self.family == "dwta":
            crew.share(hashing.largest_in_bins, vectors, self.order, self.steps, codes)
            return codes
        block = max(1, PROJECTED // self.planes.shape[1])
        for low in range(0, len(vectors), block):
            projected = (torch.from_numpy(vectors[low : low + block]) @ self.planes).numpy()
            crew.share(hashing.pack_signs, projected, codes[:, low : low + block])
        return codes
