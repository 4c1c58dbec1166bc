"""The share of a run that one peer of a mesh has: samples, goal and conductor."""

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
from oddlot.run.spec import Recipe

TOTALS = frozenset({"versions", "samples", "dollars"})
"""Figures of a goal that peers reach together, each its share. Time, epochs and metrics are the same for all."""


@dataclass(frozen=True)
class PeerShare:
    """The share of the peer `node` in a run on the machines `names`.

    Peer i of n has the positions from S i / n to S (i + 1) / n of each epoch, S being the samples. As in PyTorch's
    DistributedSampler, all peers shuffle alike, so that together they process every sample once per epoch. With
    `shards` = n, positions keep their samples: each peer trains on a part of the data of its own.
    """

    recipe: Recipe
    node: NodeId
    names: tuple[str, ...]
    done: float = 0.0
    """Part of its share of the goal that others had reached before it joined."""

    @property
    def first(self) -> int:
        """Return the first position of an epoch that the peer processes."""
        return self.recipe.samples * self._number // len(self.names)

    @property
    def stop(self) -> int:
        """Return the end of its positions."""
        return self.recipe.samples * (self._number + 1) // len(self.names)

    @property
    def samples(self) -> int:
        """Return the number of samples that it processes per epoch."""
        return self.stop - self.first

    @property
    def goal(self) -> Goal:
        """Return the goal of the peer: of figures that peers reach together, its share."""
        goal, part = self.recipe.goal, (1 - self.done) / len(self.names)
        terms = (one._replace(value=one.value * part) if one.figure in TOTALS else one for one in goal.terms)
        return replace(goal, terms=tuple(terms))

    def progress(self, tally: Tally) -> float:
        """Return which part of its share of the goal a peer has reached: of what peers reach together."""
        return self.done + (1 - self.done) * progress(self.goal, tally)

    @property
    def _number(self) -> int:
        return self.names.index(machine_of(self.node))

    def conductor(self, included: Iterable[Span] = (), sources: Sequence[IncludedModel] = ()) -> Conductor:
        """Return the conductor of a peer that has yet to process all of its samples that are not `included`.

        `sources` are the models that its initial weights include.
        """
        peers = Peers(self.node, list(self.names), sources=list(sources))
        return self.recipe.conductor(self._ledger(included), peers)

    def taking_over(
        self, included: IncludedSamples, source: IncludedModel, others: Iterable[NodeId]
    ) -> tuple["PeerShare", Conductor]:
        """Return share and conductor of a peer that takes over the samples of lost peers.

        What their models had passed on to the `others`, or to the `source` of its weights, is not processed again.
        """
        cut = joined_cuts(included.known_to(others), included.cut_of([source]))
        tally = Tally(self.samples)
        for record in included.records_of(machine_of(self.node), self.names, cut):
            tally(record)
        share = replace(self, done=self.progress(tally))
        return share, share.conductor(included.spans_in(self.first, self.stop, cut), [source])

    def _ledger(self, included: Iterable[Span]) -> SampleLedger:
        """Return the ledger after these samples: gaps among them are leased first."""
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
    """Return which part of a goal is reached, by the figures that peers reach together."""
    shares = [one for one in goal.terms if one.figure in TOTALS]
    parts = ((tally.value(one.figure) or 0.0) / one.value if one.value else 1.0 for one in shares)
    return min(1.0, max(parts, default=0.0))


@dataclass(frozen=True)
class MeshStart:
    """How the peers of a run begin. A peer that joins later begins as one that trains already."""

    weights: FlatBuffer | None = None
    """Weights of every peer. None: those of a new model."""
    optimizer: Mapping[str, Tensor] | None = None
    """Optimizer state of every peer. None: the initial one."""
    conductors: Mapping[NodeId, Conductor] = field(default_factory=dict)
    """Conductors of the peers of a resumed run."""
    included: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    """Samples that the weights include, by machine, for peers that have no conductor here."""
    sources: Sequence[IncludedModel] = ()
    """Models that the weights include."""
    strikes: Mapping[str, int] = field(default_factory=dict)
    """Samples that ended the computation of earlier peers."""
    done: float = 0.0
    """Part of the goal that earlier peers have reached, if the samples were dealt to other machines."""
    saved: frozenset[str] = frozenset()
    """Names of the checkpoints that were there before."""

    def copied_weights(self, model: nn.Module, layout: Layout) -> FlatBuffer:
        """Return the first weights of a peer, whose `model` is new."""
        weights = FlatBuffer.empty(layout)
        if self.weights is None:
            weights.gather(model)
        else:
            weights.copy_(self.weights)
        return weights

    def conductor(self, share: PeerShare) -> Conductor:
        """Return the conductor with which a peer begins."""
        if share.node in self.conductors:
            return self.conductors[share.node]
        conductor = share.conductor(self.included.get(machine_of(share.node), ()), self.sources)
        conductor.ledger.strikes.update(self.strikes)
        return conductor
