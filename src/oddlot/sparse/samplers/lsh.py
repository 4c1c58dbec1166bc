"""Rows that collide with the hidden vector in a hash table, and randomly drawn rows that represent all others."""

import logging
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.active_set import ActiveSet
from oddlot.sparse.errors import check_memory, coded, invalid_value
from oddlot.sparse.frequency_draws import FrequencyDraws
from oddlot.sparse.kernels import hashing, tables
from oddlot.sparse.sampler import Refresh, check_refresh
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import check_flag, check_number, check_whole, warn

PROJECTED = 1 << 26
"""Number of signs that are computed at once."""
MAX_TABLES = 50
ENOUGH = 2
"""Multiple of the wanted rows that the tables should give, with duplicates."""
MEASURED, AMONG = 256, 1 << 12
"""Numbers of vectors and rows for choosing digits and tables."""
FEW, MANY = 0.1, 100.0
"""Multiples of the wanted rows below and above which the tables are unsuitable."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """Numbers of digits (K) and tables (L), and the rows that they find."""

    digits: int
    """Digits of a code (K)."""
    tables: int
    """Number of tables (L)."""
    taken: float = 0.0
    """Median number of rows taken for a vector, with duplicates."""
    held: float = 0.0
    """Mean number of rows in the buckets of a vector, with duplicates."""

    def __str__(self) -> str:
        gives = f"{self.taken:.0f} of {self.held:.0f} rows per vector (with duplicates)"
        return f"{self.digits} digits in {self.tables} tables find {gives}"


@dataclass
class LSH:
    """The rows that collide with the hidden vector in a hash table, and randomly drawn rows that represent all others.

    Locality-sensitive hashing with the families `simhash`, signs of random projections (Charikar, STOC 2002), and
    `dwta`, positions of the largest of 8 coordinates (Chen, Shrivastava, UAI 2018).

    If `digits` or `tables` is None, it is chosen by measurement when hash functions are drawn: the most digits that let
    50 tables find enough rows, and the fewest tables that do.

    Draws by label frequency (see `Unigram`) make the estimate of the sum over all rows unbiased. Chen et al., "SLIDE"
    (MLSys 2020), have no such draws.
    """

    family: Literal["simhash", "dwta"] = "simhash"
    """Hash family: `simhash` or `dwta`."""
    digits: int | None = None
    """Digits of a hash code (K in the paper). Default: measured. Codes of more than 20 bits (a digit of `dwta` has 3)
    are folded into 2^20 buckets."""
    tables: int | None = None
    """Number of hash tables (L in the paper). Default: measured."""
    found: int = 200
    """Largest number of rows from the tables per example."""
    by_chance: int = 100
    """Random draws per example."""
    frequency: float = 0.8
    """Share of the draws by label frequency; the others are uniform. 0: uniform draws, each row at most once."""
    most_of_bucket: int = 128
    """Largest number of rows from one bucket. Of a longer bucket, a random section is used."""
    refresh: Refresh = field(default_factory=Refresh)
    """When the tables are rebuilt."""
    redraw_every: int = 5
    """Number of rebuilds between draws of new hash functions."""
    changed_only: bool = False
    """Whether only rows that were computed since the last rebuild are hashed again. It needs an optimizer that leaves
    other rows unchanged, and a backward pass before each next loss."""
    counts: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    """Label frequency of each row. Default: counted during training."""
    chosen: Choice = field(init=False, repr=False, compare=False, default_factory=lambda: Choice(0, 0))
    """State: the current numbers of digits and tables."""
    warned: bool = field(init=False, repr=False, compare=False, default=False)
    """State: whether a warning about unsuitable settings was shown."""
    asked: NDArray[Any] | None = field(init=False, repr=False, compare=False, default=None)
    """State: hidden vectors of the last batch."""
    lacks: bool = field(init=False, repr=False, compare=False, default=False)
    """State: whether the last batch found less than half of the wanted rows."""
    codes: NDArray[Any] | None = field(init=False, repr=False, compare=False, default=None)
    """State: codes of each table and row, with `changed_only`."""
    changed: NDArray[Any] | None = field(init=False, repr=False, compare=False, default=None)
    """State: rows that were computed since the last rebuild, with `changed_only`."""

    def __post_init__(self) -> None:
        if self.family not in ("simhash", "dwta"):
            raise invalid_value("family", self.family, "'simhash' or 'dwta'")
        check_whole(found=self.found, most_of_bucket=self.most_of_bucket, redraw_every=self.redraw_every)
        check_whole(0, by_chance=self.by_chance)
        check_number(0, 1, frequency=self.frequency)
        check_refresh(self.refresh)
        self.refresh = copy(self.refresh)  # it has state, and may be shared with another sampler
        check_flag(changed_only=self.changed_only)
        self.frequencies = FrequencyDraws(self.frequency, self.counts)
        for name in ("digits", "tables"):
            if (chosen := getattr(self, name)) is not None:
                check_whole(**{name: chosen})
        bits, most = (self.digits or 1) * self.bits_of_digit, hashing.MAX_BITS
        if bits > most:
            message = f"digits = {self.digits} gives a code of {bits} bits: at most {most} bits are supported"
            raise coded(ValueError(message), "code_too_long", digits=self.digits, bits=bits, most=most)

    def most(self, out_features: int) -> int:
        """Return the largest number of rows for an example."""
        return min(self.found + self.by_chance, out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        """Prepare for a batch, and rebuild the index if it is outdated."""
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

    def choose(self, crew: Crew, hidden: NDArray[Any], active: ActiveSet, seed: int) -> None:
        """Add the chosen rows to every example of the batch."""
        others = active.counts.copy()  # labels, and rows that other samplers found
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
        """Discard the index, because the rows were replaced."""
        self.refresh.forget()
        self.frequencies.forget()
        self.asked, self.lacks, self.codes, self.changed, self.warned = None, False, None, None, False

    @property
    def bits_of_digit(self) -> int:
        """Bits of one digit of a code."""
        return 1 if self.family == "simhash" else hashing.BITS

    @property
    def bits(self) -> int:
        """Bits of a bucket's number. Longer codes are folded."""
        return min(self.chosen.digits * self.bits_of_digit, hashing.TABLE_BITS)

    def _of_rows(self, crew: Crew, weight: NDArray[Any]) -> NDArray[np.int32]:
        """Return the codes of all rows."""
        if self.codes is None or self.changed is None:
            codes = self._codes(crew, weight)
        else:
            codes, rows = self.codes, np.flatnonzero(self.changed)
            codes[:, rows] = self._codes(crew, weight[rows])
        if self.changed_only:
            self.codes, self.changed = codes, np.zeros(len(weight), np.bool_)
        return codes

    def _choice(self, crew: Crew, weight: NDArray[Any], seed: int) -> Choice:
        """Return the numbers of digits and tables. Warn if given numbers find too few or too many rows."""
        wanted, has = self._wanted(weight), self._measured(crew, weight, seed, self.digits, self.tables)
        logger.info("%s for %d rows: %s", self.family, len(weight), has)
        fits = FEW * wanted <= has.taken and has.held <= MANY * wanted
        if (self.digits or self.tables) and not fits and not self.warned:
            self.warned, better = True, self._measured(crew, weight, seed)
            take = {"digits": better.digits, "tables": better.tables}
            message = "use digits={digits}, tables={tables}".format(**take)
            warn(f"{has}, but {wanted} are wanted: {message}", "unsuitable_tables", wanted=wanted, **take)
        return has

    def _measured(
        self, crew: Crew, weight: NDArray[Any], seed: int, digits: int | None = None, count: int | None = None
    ) -> Choice:
        """Return the given numbers of digits and tables, and the rows that they find.

        If a number is None, choose the most digits, and then the fewest tables, that find enough rows.
        """
        most = max(1, min(hashing.TABLE_BITS, int(np.log2(max(2, len(weight))))) // self.bits_of_digit)
        enough = ENOUGH * self._wanted(weight)
        for tried in range(most, 0, -1) if digits is None else (digits,):
            self._draw(weight.shape[1], Choice(tried, count or MAX_TABLES), seed)
            taken, held = self._in_tables(crew, weight)
            if taken[-1] >= enough:
                break
        few = count or min(int(np.searchsorted(taken, enough)) + 1, MAX_TABLES)
        return Choice(tried, few, float(taken[few - 1]), float(held[few - 1]))

    def _check_memory(self, rows: int, columns: int) -> None:
        """Raise MemoryError if tables and codes need more memory than this machine has."""
        count, digits = self.tables or MAX_TABLES, self.digits or 1
        bits = min(digits * self.bits_of_digit, hashing.TABLE_BITS)
        buckets = 1 << bits if self.digits else rows
        needs = 4 * count * (2 * rows + buckets + columns * digits)
        check_memory(needs, f"{count:,} tables of {rows:,} rows in {buckets:,} buckets")

    def _wanted(self, weight: NDArray[Any]) -> int:
        return min(self.found, len(weight))

    def _in_tables(self, crew: Crew, weight: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return, for each number of tables, the median of taken rows and the mean of rows in buckets, with duplicates.

        They are measured with hidden vectors of the last batch; at first, with rows instead.
        """
        rows = np.ascontiguousarray(weight[:: max(1, len(weight) // AMONG)])
        queries = rows[:: max(1, len(rows) // MEASURED)] if self.asked is None else self.asked
        codes, asked = self._codes(crew, rows), self._codes(crew, np.ascontiguousarray(queries))
        sizes = (np.bincount(table, minlength=1 << self.bits) for table in codes)
        each = np.array([size[own] for size, own in zip(sizes, asked, strict=True)])
        held = (each - (self.asked is None)) * len(weight) / len(rows)
        given = np.cumsum(np.minimum(held, self.most_of_bucket), axis=0)
        return np.median(given, axis=1), np.cumsum(held.mean(axis=1))

    def _draw(self, columns: int, choice: Choice, seed: int) -> None:
        """Draw hash functions. With simhash, they are the same for the first tables with any number of tables."""
        self.chosen, chance, count = choice, np.random.default_rng(seed), choice.tables * choice.digits
        if self.family == "simhash":
            planes = chance.standard_normal((count, columns)).astype(np.float32)
            self.planes = torch.from_numpy(np.ascontiguousarray(planes.T))
            return
        self.order, self.steps = hashing.draw_bins(columns, count, chance)

    def _codes(self, crew: Crew, vectors: NDArray[Any]) -> NDArray[np.int32]:
        """Return the codes of the vectors in each table."""
        codes = np.empty((self.chosen.tables, len(vectors)), np.int32)
        if self.family == "dwta":
            crew.share(hashing.largest_in_bins, vectors, self.order, self.steps, codes)
            return codes
        block = max(1, PROJECTED // self.planes.shape[1])
        for low in range(0, len(vectors), block):
            projected = (torch.from_numpy(vectors[low : low + block]) @ self.planes).numpy()
            crew.share(hashing.pack_signs, projected, codes[:, low : low + block])
        return codes
