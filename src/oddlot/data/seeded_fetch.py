"""Minibatches with random augmentations that depend only on the seed, the epoch and the sample."""

from collections.abc import Sequence
from typing import Any

from oddlot.core.tasks import Task
from oddlot.data.batches import Batches
from oddlot.data.sample_order import Minibatch
from oddlot.data.seeding import GLOBAL, chance_of, generators_of, numbers_of

COLLATE = 0x9E3779B9
"""Makes the seed of `collate` differ from the seed of the first sample."""


class SeededFetch:
    """Fetches minibatches. Each sample is the same on every worker, in every minibatch and in every process.

    Before a sample is read, the generators that the data draw from are seeded with a hash of the seed, the epoch and
    the sample's index. Before `collate`, they are seeded with the first sample of the minibatch. Seeding takes about
    10 µs per generator, so only generators that the data have drawn from are seeded: a minibatch is read, and if that
    changes a generator, it is read again with seeding. The generators are restored afterwards.

    Generators are those of torch (on the CPU), numpy and random, and those in the attribute `rng` of a dataset.
    """

    def __init__(self, batches: Batches, seed: int) -> None:
        self.batches, self.seed = batches, seed
        own = [chance_of(each) for each in generators_of(batches.data)]
        self.sources = [*GLOBAL.values(), *own]
        self.drawn = [False] * len(self.sources)
        """Whether the data have drawn from each generator."""

    def plan(self, task: Task | None, batches: Sequence[Minibatch]) -> None:
        """Do nothing: each minibatch is read when it is needed."""

    def __call__(self, minibatch: Minibatch) -> Any:
        """Return a minibatch, and leave the generators as they were."""
        if self.batches.is_plain:
            return self.batches.fetch(minibatch.indices)
        known = [source for source, drawn in zip(self.sources, self.drawn, strict=True) if drawn]
        before = [source.get() for source in known]
        try:
            return self._watched(minibatch)
        finally:
            for source, state in zip(known, before, strict=True):
                source.set(state)

    def _watched(self, minibatch: Minibatch) -> Any:
        """Return a minibatch. Read it again if it draws from a generator for the first time."""
        new = [(at, source) for at, source in enumerate(self.sources) if not self.drawn[at]]
        before = [(source.glance or source.get)() for _, source in new]
        try:
            while True:
                batch, again = self._read(minibatch), False
                for (at, source), glance in zip(new, before, strict=True):
                    if not self.drawn[at] and source.differs(glance, (source.glance or source.get)()):
                        self.drawn[at] = again = True
                if not again:
                    return batch
        finally:
            for (at, source), glance in zip(new, before, strict=True):
                if self.drawn[at]:
                    source.set(source.state(glance))

    def _read(self, minibatch: Minibatch) -> Any:
        batches, indices = self.batches, minibatch.indices
        if not any(self.drawn):
            return batches.fetch(indices)
        numbers = numbers_of(self.seed, minibatch.epochs, indices, minibatch.repeats).tolist()
        samples = []
        for index, number in zip(indices.tolist(), numbers, strict=True):
            self._seed(number)
            samples.append(batches.sample(index))
        batches.reading = None
        self._seed(numbers[0] ^ COLLATE)
        return batches.collate(samples)

    def _seed(self, number: int) -> None:
        """Seed the generators that the data draw from."""
        for at, (source, drawn) in enumerate(zip(self.sources, self.drawn, strict=True)):
            if drawn:
                source.seed((number + max(0, at - len(GLOBAL))) % 2**32)
