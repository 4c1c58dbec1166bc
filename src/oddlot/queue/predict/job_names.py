"""Names of jobs: buckets of names that differ in numbers only, and the most similar bucket."""

import re

from oddlot.queue.extra import extra

SIMILARITY = 60.0
"""Smallest similarity of a match, in percent: the 0.6 of Helios."""
MAX_BUCKETS = 2_000
"""Number of buckets that a name is compared with, the latest first."""
MAX_CHARACTERS = 120
NUMBERS = re.compile(r"0x[0-9a-f]+|(?<![a-z])[0-9a-f]{8,}(?![a-z])|\d+(?:[.,:e+-]+\d+)*")


def bucket_of(name: str) -> str:
    """Return a name in lower case, with `#` for numbers, dates and hashes."""
    return NUMBERS.sub("#", name[:MAX_CHARACTERS].lower().strip())


class NameIndex:
    """Buckets of the names in a history, and a search for the most similar one."""

    def __init__(self) -> None:
        self.buckets: dict[str, None] = {}
        self._order: list[str] = []
        self._found: dict[str, tuple[int, float, str]] = {}
        """By searched bucket: the number of buckets that it was compared with, and the best similarity and bucket."""

    def add(self, bucket: str) -> None:
        """Add a bucket."""
        if bucket and bucket not in self.buckets:
            self.buckets[bucket] = None
            self._order.append(bucket)

    def nearest(self, bucket: str) -> str:
        """Return the most similar bucket, or an empty text if none is similar. A known bucket is the nearest to itself.

        The similarity is the share of common characters in the same order (normalized indel similarity), as in
        `difflib`. A bucket is compared only once with each other one.
        """
        if not bucket or bucket in self.buckets:
            return bucket
        done, similarity, best = self._found.get(bucket, (0, SIMILARITY, ""))
        added = self._order[max(done, len(self._order) - MAX_BUCKETS) :]
        if added:
            process, fuzz = extra("rapidfuzz.process", "prediction"), extra("rapidfuzz.fuzz", "prediction")
            found = process.extractOne(bucket, added, scorer=fuzz.ratio, score_cutoff=similarity)
            if found is not None and (found[1] > similarity or not best):
                best, similarity = found[0], found[1]
            self._found[bucket] = len(self._order), similarity, best
        return best
