"""The share of one peer in a run on a mesh: its samples, goal and conductor, and the initial state of peers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from oddlot.core.conductor import Conductor
from oddlot.core.peers import IncludedModel, Peers
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span
from oddlot.core.shard_queue import ShardCursor
from oddlot.core.tasks import NodeId, machine_of
from oddlot.history.goals import Goal
from oddlot.history.included_samples import IncludedSamples, joined_cuts
from oddlot.history.metrics import Tally
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.run.recipe import Recipe

TOTALS = frozenset({"versions", "samples", "dollars"})
"""Figures of a goal that are divided among peers. Time, epochs and metrics are the same for all."""


@dataclass(frozen=True)
class PeerShare:
    """The share of the peer `node` in a run on the machines `names`.

    Peer i of n has the positions from S i / n to S (i + 1) / n of each epoch of S samples. As in PyTorch's
    DistributedSampler, all peers use the same shuffled order. Together they process every sample once per epoch. With
    `shards` = n, samples are shuffled within the share only: each peer trains on its own part of the data.
    """

    recipe: Recipe
    node: NodeId
    names: tuple[str, ...]
    done: float = 0.0
    """Fraction of its share of the goal that was reached before it joined."""

    @property
    def first(self) -> int:
        """Return the first position of the peer in each epoch."""
        return self.recipe.samples * self._number // len(self.names)

    @property
    def stop(self) -> int:
        """Return the end (exclusive) of its positions."""
        return self.recipe.samples * (self._number + 1) // len(self.names)

    @property
    def samples(self) -> int:
        """Return its number of samples per epoch."""
        return self.stop - self.first

    @property
    def goal(self) -> Goal:
        """Return the goal of the peer, with figures in `TOTALS` divided among all peers."""
        goal, part = self.recipe.goal, (1 - self.done) / len(self.names)
        terms = (one._replace(value=one.value * part) if one.figure in TOTALS else one for one in goal.terms)
        return replace(goal, terms=tuple(terms))

    def progress(self, tally: Tally) -> float:
        """Return the fraction of its share of the goal that the peer has reached, by the figures in `TOTALS`."""
        return self.done + (1 - self.done) * progress(self.goal, tally)

    @property
    def _number(self) -> int:
        return self.names.index(machine_of(self.node))

    def conductor(self, included: Iterable[Span] = (), sources: Sequence[IncludedModel] = ()) -> Conductor:
        """Return the conductor of a peer that processes its samples except those `included`.

        `sources`: models that its initial weights include.
        """
        peers = Peers(self.node, list(self.names), sources=list(sources))
        return self.recipe.conductor(self._ledger(included), peers)

    def taking_over(
        self, included: IncludedSamples, source: IncludedModel, others: Iterable[NodeId]
    ) -> tuple["PeerShare", Conductor]:
        """Return the share and the conductor of a peer that takes over the samples of lost peers.

        Samples that the models of the `others` or the `source` of its weights include are not processed again.
        """
        cut = joined_cuts(included.known_to(others), included.cut_of([source]))
        tally = Tally(self.samples)
        for record in included.records_of(machine_of(self.node), self.names, cut):
            tally(record)
        share = replace(self, done=self.progress(tally))
        return share, share.conductor(included.spans_in(self.first, self.stop, cut), [source])

    def _ledger(self, included: Iterable[Span]) -> SampleLedger:
        """Return a ledger with these samples merged. Gaps between them are leased first."""
        done = sorted(included)
        last = done[-1].epoch if done else 0
        at = max((span.stop for span in done if span.epoch == last), default=self.first)
        gaps: list[Span] = []
        merged = []
        for epoch in range(last + 1):
            place, before = self.first, len(gaps)
            for _, start, stop in (span for span in done if span.epoch == epoch):
                gaps += [Span(epoch, place, start)] if place < start else []
                place = max(place, stop)
            end = at if epoch == last else self.stop
            gaps += [Span(epoch, place, end)] if place < end else []
            merged.append(end - self.first - sum(gap.stop - gap.start for gap in gaps[before:]))
        while merged and merged[0] == self.samples:
            del merged[0]
        cursor = ShardCursor(self.first, self.stop, last, at, gaps)
        skip_bad, cuts, epoch = self.recipe.config.skip_bad, [self.first, self.stop], last + 1 - len(merged)
        return SampleLedger(
            self.samples,
            self.goal.epochs,
            1,
            False,
            skip_bad,
            cuts,
            epoch=epoch,
            merged=merged or [0],
            cursors=[cursor],
        )


def progress(goal: Goal, tally: Tally) -> float:
    """Return the fraction of a goal that is reached, by the figures in `TOTALS`."""
    shares = [one for one in goal.terms if one.figure in TOTALS]
    parts = ((tally.value(one.figure) or 0.0) / one.value if one.value else 1.0 for one in shares)
    return min(1.0, max(parts, default=0.0))


@dataclass(frozen=True)
class MeshStart:
    """The initial state of the peers of a run. A peer that joins later gets the state of another peer."""

    weights: FlatBuffer | None = None
    """Initial weights of every peer. If None, the weights of a new model."""
    optimizer: Mapping[str, Tensor] | None = None
    """Optimizer state of every peer. If None, the initial state."""
    conductors: Mapping[NodeId, Conductor] = field(default_factory=dict)
    """Conductors of the peers of a resumed run."""
    included: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    """Samples that the weights include, by machine, for peers without an entry in `conductors`."""
    sources: Sequence[IncludedModel] = ()
    """Models that the weights include."""
    strikes: Mapping[str, int] = field(default_factory=dict)
    """Number of worker crashes per sample range in earlier peers."""
    done: float = 0.0
    """Fraction of the goal that earlier peers have reached, if other machines take over their samples."""
    saved: frozenset[str] = frozenset()
    """Names of existing checkpoints."""

    def copied_weights(self, model: nn.Module, layout: Layout) -> FlatBuffer:
        """Return a copy of the initial weights of a peer, from a new `model` if `weights` is None."""
        weights = FlatBuffer.empty(layout)
        if self.weights is None:
            weights.gather(model)
        else:
            weights.copy_(self.weights)
        return weights

    def conductor(self, share: PeerShare) -> Conductor:
        """Return the initial conductor of a peer."""
        if share.node in self.conductors:
            return self.conductors[share.node]
        conductor = share.conductor(self.included.get(machine_of(share.node), ()), self.sources)
        conductor.ledger.strikes.update(self.strikes)
        return conductor
