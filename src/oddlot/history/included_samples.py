"""The samples that the models of a mesh include.

A model includes all samples that its peer has merged, and all samples of the models that it was averaged with. A *cut*
has, for each peer, the number of records of its log that a model includes (a vector clock: Mattern 1989).
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from oddlot.core.commands import Action, Average, Blend, Complete, Dispatch, Drop, Step
from oddlot.core.events import Averaged, Changed, Resumed
from oddlot.core.peers import IncludedModel, ModelId
from oddlot.core.records import Record
from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span, without
from oddlot.core.support.serialization import from_plain
from oddlot.core.tasks import NodeId, UpdateId, machine_of, worker_number
from oddlot.history.audit import Sheets
from oddlot.history.log import has_header, numbered, read_header, read_log
from oddlot.history.run_folder import RunFolder

Cut = dict[NodeId, int]
"""For each peer, the number of records of its log that a model includes."""
MergedInterval = tuple[int, int, int, UpdateId]
"""Epoch, start, stop (exclusive) and update of an interval."""


class SentModel(NamedTuple):
    """A model that was sent to another peer, until it is dropped there."""

    layers: Mapping[int, Cut]
    """Cuts of single trainable parameters, by their numbers."""
    rest: Cut | None
    """Cut of all other parameters. None if the model lacks them."""
    part: Cut
    """Cut that at least one layer of the sender's model included."""

    @classmethod
    def of(cls, layers: Iterable[int] | None, cut: Cut, part: Cut) -> "SentModel":
        """Return a sent model with these layers, or with all layers for None, for a sender with this `cut` and
        `part`."""
        return cls({}, cut, part) if layers is None else cls(dict.fromkeys(layers, cut), None, part)

    def completed(self, older: "SentModel") -> "SentModel":
        """Return this model, with missing layers from an older model of the same peer."""
        if self.rest is not None:
            return self
        return SentModel({**older.layers, **self.layers}, older.rest, joined_cuts(self.part, older.part))

    def cuts(self, layer_count: int) -> list[Cut]:
        """Return the different cuts of its layers. A missing layer has an empty cut.

        `layer_count` is the number of all layers, or 0 if it is unknown.
        """
        has_rest = not 0 < layer_count <= len(self.layers)
        cuts = [*self.layers.values(), *([self.rest or {}] if has_rest else [])]
        return list({id(cut): cut for cut in cuts}.values())


UNKNOWN = SentModel.of(None, {}, {})
"""A model that no log has."""


@dataclass
class PeerHistory:
    """The valid records of one peer, and the state after the records that were read."""

    node: NodeId
    records: Sequence[tuple[int, Record]]
    """Records with their numbers in the log."""
    sources: Sequence[IncludedModel] = ()
    """Models that the initial weights include."""
    merged_before: Sequence[Span] = ()
    """Samples of its machine that were merged before it started, from its ledger."""
    machines: Sequence[str] = ()
    """Machines of the mesh when it started. Empty: unknown."""
    place: int = 0
    """Index of the next record."""
    cut: Cut = field(default_factory=dict)
    """Cut of the peer's model after the records before `place`."""
    part: Cut = field(default_factory=dict)
    """Cut that at least one layer of the model includes."""
    has_started: bool = False

    @property
    def log(self) -> list[Record]:
        """Return the records without their numbers."""
        return [record for _, record in self.records]

    @property
    def number(self) -> float:
        """Return the number of the next record; infinity at the end."""
        return self.records[self.place][0] if self.place < len(self.records) else float("inf")


class IncludedSamples:
    """The samples in the models of a mesh, computed from the logs of all peers.

    A model of some layers changes only `part_of`. A model that is not in the log of its sender counts as empty.
    """

    def __init__(self, histories: Iterable[PeerHistory], sources: Iterable[IncludedModel] = ()) -> None:
        self.histories = {one.node: one for one in histories}
        self.sent: dict[ModelId, SentModel] = {}
        """Sent models. Each has one receiver, and is removed when the receiver drops it."""
        self.layer_count = 0
        """Number of trainable parameters of the model. 0: unknown."""
        self.at: dict[IncludedModel, Cut] = {}
        """Cuts of the peers' models at the points that records refer to."""
        self.part_at: dict[IncludedModel, Cut] = {}
        """Cuts that at least one layer includes at these points."""
        self.points: dict[NodeId, list[int]] = {node: [] for node in self.histories}
        self._collect_points(sources)
        while any(map(self._advance, self.histories.values())) or self._give_up_waiting():
            pass  # every call reads as far as possible

    @classmethod
    def read(cls, run: RunFolder, sources: Iterable[IncludedModel] = ()) -> "IncludedSamples":
        """Read the logs of all peers of a run. Raise CheckpointError if one is damaged.

        `cut_of` supports the models that records refer to, and these `sources`.
        """
        logs = [(node, path) for node, path in run.logs().items() if has_header(path)]
        return cls((history_of(node, path, read_log(path)) for node, path in logs), sources)

    def cut_of(self, sources: Iterable[IncludedModel]) -> Cut:
        """Return the cut of an average of these models."""
        there = [source for source in sources if source.peer in self.histories]
        return joined_cuts(
            *(self.at.get(source, {}) for source in there), *({one.peer: one.records} for one in there)
        )

    def part_of(self, sources: Iterable[IncludedModel]) -> Cut:
        """Return the cut that at least one layer of an average of these models includes."""
        return joined_cuts(*(self.part_at.get(source, {}) for source in sources))

    @property
    def log_records(self) -> dict[NodeId, int]:
        """Return the number of records in the log of each peer, including lost work."""
        return {node: one.records[-1][0] + 1 if one.records else 0 for node, one in self.histories.items()}

    @property
    def newest(self) -> Cut:
        """Return the joint cut of the newest peers of all machines."""
        return self.known_to(
            {machine_of(one): one for one in sorted(self.histories, key=worker_number)}.values()
        )

    def known_to(self, peers: Iterable[NodeId]) -> Cut:
        """Return the joint cut of the models of these peers."""
        return joined_cuts(*(self.histories[peer].cut for peer in peers if peer in self.histories))

    def pieces(
        self, cut: Mapping[NodeId, int], beyond: Mapping[NodeId, int] | None = None
    ) -> list[MergedInterval]:
        """Return the merged or skipped intervals of a cut, without the intervals of the cut `beyond`."""
        found: list[MergedInterval] = []
        for node, history in self.histories.items():
            first, sheets = (beyond or {}).get(node, 0), Sheets()
            for number, record in history.records:
                if number >= cut.get(node, 0):
                    break
                sheets.note(record)
                found += sheets.latest if number >= first else []
        return found

    def records_of(self, machine: str, machines: Sequence[str], cut: Mapping[NodeId, int]) -> list[Record]:
        """Return the records of a machine's peers in a cut. Only peers of a mesh of these machines count."""
        histories = [self.histories[node] for node in sorted(self.histories, key=worker_number)]
        return [
            record
            for one in histories
            if machine_of(one.node) == machine and tuple(one.machines) in ((), tuple(machines))
            for number, record in one.records
            if number < cut.get(one.node, 0)
        ]

    def spans_in(self, first: int, stop: int, cut: Mapping[NodeId, int]) -> list[Span]:
        """Return the samples in a cut at the positions from `first` to `stop` (exclusive) of each epoch.

        Samples of records that a log lacks are included if later peers started after them.
        """
        logged = _spans(self.pieces(dict.fromkeys(self.histories, sys.maxsize)))
        before = [span for node, one in self.histories.items() if node in cut for span in one.merged_before]
        found = [*_spans(self.pieces(cut)), *without(before, logged)]
        parts = (Span(epoch, max(start, first), min(end, stop)) for epoch, start, end in found)
        return [part for part in parts if part.start < part.stop]

    # --- reading -------------------------------------------------------------------------------

    def _collect_points(self, asked: Iterable[IncludedModel]) -> None:
        """Collect the points in the logs where cuts are stored."""
        sources = [*asked, *(source for one in self.histories.values() for source in one.sources)]
        for one in self.histories.values():
            for _, record in one.records:
                match record.event:
                    case Resumed() as event:
                        sources += event.sources
                    case Averaged() as event:
                        sources += sources_of_average(event)
        for peer, records in set(sources):
            if peer in self.points:
                self.points[peer].append(records)
        for points in self.points.values():
            points.sort()

    def _advance(self, history: PeerHistory) -> bool:
        """Read the records of a peer until it waits for another peer. Return whether any record was read."""
        before = history.place, history.has_started
        while self._can_read(history):
            self._read_next(history)
        return (history.place, history.has_started) != before

    def _can_read(self, history: PeerHistory) -> bool:
        """Return whether everything that the next record depends on was read."""
        if not history.has_started:
            return self._is_known(history.sources)
        if history.place == len(history.records):
            return False
        _, record = history.records[history.place]
        if isinstance(record.event, Resumed) and not self._is_known(record.event.sources):
            return False
        return all(self._is_there(model) for action in record.actions for model in models_in(action))

    def _is_there(self, model: ModelId) -> bool:
        """Return whether the record that sent a model was read, or is in no log."""
        sender = self.histories.get(model.partition(">")[0])
        return model in self.sent or sender is None or sender.number == float("inf")

    def _is_known(self, sources: Iterable[IncludedModel]) -> bool:
        return all(source in self.at or source.peer not in self.histories for source in sources)

    def _read_next(self, history: PeerHistory) -> None:
        if not history.has_started:
            history.has_started = True
            history.cut, history.part = self.cut_of(history.sources), self.part_of(history.sources)
        else:
            number, record = history.records[history.place]
            history.place += 1
            if isinstance(record.event, Resumed) and record.event.sources:
                history.cut = self.cut_of(record.event.sources)
                history.part = self.part_of(record.event.sources)
            if isinstance(record.event, Changed) and record.event.drift is not None:
                self.layer_count = max(self.layer_count, len(record.event.drift.layers))
            self._follow(history, record.actions, number)
            history.cut[history.node] = number + 1
        points = self.points[history.node]
        while points and points[0] <= history.number:
            point = IncludedModel(history.node, points.pop(0))
            self.at[point], self.part_at[point] = dict(history.cut), dict(history.part)

    def _follow(self, history: PeerHistory, actions: Sequence[object], number: int) -> None:
        """Process the actions of a record. A model that is sent before a merge does not include it."""
        merges = any(isinstance(action, Step | Blend) for action in actions)
        history.cut[history.node] = number if merges else number + 1  # a resume keeps the sent model
        for action in actions:
            match action:
                case Step() | Blend():
                    history.cut[history.node] = number + 1
                case Average(shares, keep):
                    self._average(history, [model for model, share in shares.items() if share])
                    if not keep:
                        self._forget(shares)
                case Complete(model_id, older):
                    newer = self.sent.get(model_id, UNKNOWN)
                    self.sent[model_id] = newer.completed(self.sent.get(older, UNKNOWN))
                    self._forget([older])
                case Drop(update):
                    self._forget([update])
                case Dispatch(_, model):
                    self.sent[model.id] = SentModel.of(model.layers, dict(history.cut), dict(history.part))

    def _average(self, history: PeerHistory, models: Iterable[ModelId]) -> None:
        """Add the cuts of these models. They are averaged into a peer's model."""
        for model in models:
            sent = self.sent.get(model, UNKNOWN)
            cuts = sent.cuts(self.layer_count)
            history.cut = joined_cuts(history.cut, common_cut(cuts))
            history.part = joined_cuts(history.part, sent.part, *(cuts if len(cuts) > 1 else ()))

    def _forget(self, models: Iterable[ModelId]) -> None:
        for model in models:
            self.sent.pop(model, None)

    def _give_up_waiting(self) -> bool:
        """Read the next record of a peer that waits for a record that no log has. Return whether there was one."""
        for history in self.histories.values():
            if not history.has_started or history.place < len(history.records):
                self._read_next(history)
                return True
        return False


def models_in(action: Action) -> list[ModelId]:
    """Return the models of other peers that an action reads."""
    match action:
        case Average(shares):
            return list(shares)
        case Complete(model, older):
            return [model, older]
        case _:
            return []


def _spans(pieces: Iterable[MergedInterval]) -> list[Span]:
    return [Span(epoch, start, stop) for epoch, start, stop, _ in pieces]


def sources_of_average(event: Averaged) -> list[IncludedModel]:
    """Return the models in an average."""
    return [IncludedModel(*pair) for pair in zip(event.peers, event.records, strict=False)]


def history_of(node: NodeId, path: Path, log: Iterable[Record]) -> PeerHistory:
    """Return the history of a peer with these records in its log."""
    header = read_header(path)
    ledger: SampleLedger = from_plain(SampleLedger, header["conductor"]["ledger"])
    machines = header["conductor"].get("peers", {}).get("machines", ())
    return PeerHistory(node, numbered(log), sources_of(header), ledger.merged_spans(), machines)


def sources_of(header: Mapping[str, Any]) -> list[IncludedModel]:
    """Return the models that the initial weights of a peer include."""
    sources: list[IncludedModel] = from_plain(
        list[IncludedModel], header["conductor"].get("peers", {}).get("sources", [])
    )
    return sources


def common_cut(cuts: Sequence[Cut]) -> Cut:
    """Return the largest cut that all of these cuts include."""
    return {node: min(cut[node] for cut in cuts) for node in cuts[0] if all(node in cut for cut in cuts)}


def joined_cuts(*cuts: Mapping[NodeId, int]) -> Cut:
    """Return the smallest cut that includes all of these cuts."""
    joined: Cut = {}
    for cut in cuts:
        for node, records in cut.items():
            joined[node] = max(joined.get(node, 0), records)
    return joined
