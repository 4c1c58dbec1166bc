"""The store: the weights of the model, the inbox of updates, and the merges `step` and `blend`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor

from oddlot.core.commands import DriftOf
from oddlot.core.optimizers import Optimizer
from oddlot.core.sum_tree import additions
from oddlot.core.support.errors import ProtocolError, Rejection
from oddlot.core.tasks import GRADIENT_KINDS, Facts, Kind, UpdateId
from oddlot.model import merging as merge
from oddlot.model.arrival import Arrival, norm_of
from oddlot.model.block_pool import BlockSource, Pool
from oddlot.model.combine import Combine, Gate
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.gradient_clipping import merged_clip_factor
from oddlot.model.merging import MergeNorms, Meter
from oddlot.model.optimizer_math import GroupOptimizers
from oddlot.model.payload import Payload
from oddlot.model.small_merges import SmallMerges
from oddlot.model.step_counts import StepCounts
from oddlot.model.stored_tensors import StoredTensors, copy_sections, optimizer_sections
from oddlot.model.update_gates import pass_gate, standard_gates
from oddlot.model.weight_average import COUNT, WeightAverage
from oddlot.model.weight_drift import DriftMeter


class WeightStore:
    """The weights of a run by version, the inbox, and the optimizers.

    An acquired version is never changed: the next version is written into a block from the pool. Otherwise weights are
    changed in place.

    Args:
        initial: Weights of version `version`. The store owns the block.
        optimizers: One optimizer, or a mapping from each parameter group of the layout to its optimizer.
        pool: Source of blocks. Default: a new `Pool`.
        version: Number of the initial version.
        rates: Learning rate of each parameter group, as a function of the samples merged so far and the version. None:
            the optimizers' own.
        max_grad_norm: Largest norm of a merged gradient. Larger ones are clipped. None: no limit.
        ema_decay: Decay of the moving average of the weights. None: no average.
        gates: Checks of each update before it is added to the inbox, in this order. Default: the standard gates.
        combine: Rule that combines the updates of a merge of several. None: the weighted sum.
    """

    def __init__(
        self,
        initial: FlatBuffer,
        optimizers: Optimizer | Mapping[int, Optimizer],
        pool: BlockSource | None = None,
        version: int = 0,
        rates: Callable[[int, int], Mapping[int, float]] | None = None,
        max_grad_norm: float | None = None,
        ema_decay: float | None = None,
        gates: Sequence[Gate] | None = None,
        combine: Combine | None = None,
    ) -> None:
        self.layout: Layout = initial.layout
        self.weights = initial
        self.version = version
        self.inbox: dict[UpdateId, Payload] = {}
        device = initial.memory.device
        self._pool: BlockSource = pool or Pool(lambda: FlatBuffer.empty(self.layout, device))
        self._read: int | None = None
        """Version that the next merge starts from. If None, the newest version."""
        self._held: dict[int, FlatBuffer] = {}
        self._holds: dict[int, int] = {}
        self._optimizers = GroupOptimizers(optimizers, initial)
        self._steps = StepCounts(self.layout)
        self._gates = standard_gates() if gates is None else gates
        self._rates, self._max_grad_norm = rates, max_grad_norm
        self._average = None if ema_decay is None else WeightAverage(ema_decay, initial)
        self._averages: dict[int, FlatBuffer] = {}
        """Copies of the average that are being evaluated, by version."""
        self._meter: Meter | None = None
        self._drift: DriftMeter | None = None
        self._combine = combine
        self._small_merges = SmallMerges(combine)
        self._spare: FlatBuffer | None = None
        """Memory for a sum of updates of kind `sum`, or for the result of the rule `combine`."""

    def acquire(self, version: int) -> FlatBuffer:
        """Return the weights of the current or a held version. They do not change until they are released.

        Raise ProtocolError if the version is no longer kept.
        """
        if version != self.version and version not in self._holds:
            raise ProtocolError(
                f"version {version} was not kept: the model is at version {self.version} and keeps "
                f"{sorted(self._holds)}. Keep a version before the merge that replaces it",
                "version_not_kept",
                version=version,
            )
        self._holds[version] = self._holds.get(version, 0) + 1
        return self._held.setdefault(version, self.weights)

    def release(self, version: int) -> None:
        """Release an acquired version. The last release of an old version returns its memory."""
        if version not in self._holds:
            message = f"version {version} is released more often than it was acquired"
            raise ProtocolError(message, "version_not_acquired", version=version)
        self._holds[version] -= 1
        if not self._holds[version]:
            del self._holds[version]
            block = self._held.pop(version)
            if block is not self.weights:
                self._pool.give(block)

    def acquire_evaluated(self, version: int) -> FlatBuffer:
        """Return the weights to evaluate a version with: the moving average, if there is one of this version."""
        if self._average is None or version != self.version:
            return self.acquire(version)
        block = self._averages[version] = self._pool.take()
        block.copy_(self._average.weights)
        return block

    def release_evaluated(self, version: int) -> None:
        """Release the weights that `acquire_evaluated` returned."""
        if version in self._averages:
            self._pool.give(self._averages.pop(version))
        else:
            self.release(version)

    @property
    def final(self) -> FlatBuffer:
        """The weights of the result: the moving average, if there is one."""
        return self.weights if self._average is None else self._average.weights

    def receive(self, facts: Facts, payload: Payload) -> None:
        """Add an update to the inbox. If a gate rejects it, release its payload and raise Refusal."""
        if facts.id in self.inbox:
            message = f"update {facts.id} is already in the inbox: ids must not be reused"
            raise ProtocolError(message, "update_id_reused", update=facts.id)
        try:
            arrival = Arrival(facts, payload.kind, payload.flat, self.weights, self._base(facts))
            for gate in self._gates:
                pass_gate(gate, arrival)
        except Rejection:
            payload.release()
            raise
        self.inbox[facts.id] = payload
        self._read = facts.read

    def drop(self, update: UpdateId) -> None:
        """Remove an update from the inbox."""
        self._known(update)
        self.inbox.pop(update).release()

    def step(
        self,
        shares: Mapping[UpdateId, float],
        measure: int = 0,
        merged: int | None = None,
        drift: DriftOf | None = None,
        chunks: Sequence[int] | None = None,
    ) -> MergeNorms | None:
        """Make one step of the optimizers with the sum of share x update, for gradients, sums and deltas.

        A parameter without a gradient in any update keeps its value. If only some updates have one, it is zero in the
        others, as in DistributedDataParallel. Buffers move by min(1, sum of shares) towards the updates' mean.

        With a rule `combine`, the step is along the combined update times the sum of shares. A merge of fewer than
        `LEAST_UPDATES` updates then makes a version with the same weights.

        Args:
            shares: Share of each update, by id.
            measure: Merges per window of the measured inner products. 0: the merge is not measured.
            merged: Number of samples merged before, for the learning rates.
            drift: Distances from the marked weights to measure. If None, no distance is measured.
            chunks: For updates of kind `sum`, the number of chunks of each. They are added as in `core/sum_tree`.

        Returns:
            The measurements, or None if nothing is measured.
        """
        kinds: tuple[Kind, ...] = ("gradient", "delta") if chunks is None else ("sum",)
        updates = self._updates(shares, kinds, "Step", "Blend")
        if chunks is not None:
            updates = [(self._summed(updates, chunks), 1.0)]
        if self._small_merges.is_too_small(len(updates)):
            return self._without_change(shares)
        updates, left_out = self._combined(shares, updates)
        rates = None if self._rates is None or merged is None else self._rates(merged, self.version)
        drift_meter = self._drift_meter() if drift is not None else None
        self._optimizers.begin(rates)
        base, out, meter = self._open(measure)
        stretches = self._steps.advance([flat for flat, _ in updates], apart=merge.is_alone(updates))
        clipped = self._clip_factor(updates, next(iter(shares)))
        merge.step(self._optimizers.by_section, base, updates, out, stretches, meter, clipped)
        change = _with_left_out(self._close(shares, out, meter), left_out)
        if drift_meter is None:
            return change
        measured = drift_meter.measure(self.weights, drift == "layers", self._optimizers.lr_factor(rates))
        return replace(change or MergeNorms(None, None), drift=measured)

    def blend(
        self, shares: Mapping[UpdateId, float], measure: int = 0, keep: bool = False
    ) -> MergeNorms | None:
        """Average weights into the model: W <- (1 - sum of shares) x W + sum of share x weights.

        Buffers are merged as in `step`. With `keep`, the weights stay in the inbox.
        """
        updates = self._updates(shares, ("weights",), "Blend", "Step")
        if self._small_merges.is_too_small(len(updates)):
            return self._without_change(shares)
        base, out, meter = self._open(measure)
        for update in shares:
            self.inbox[update].complete(base)
        updates, left_out = self._combined(shares, updates)
        merge.blend(base, updates, out, meter)
        return _with_left_out(self._close(() if keep else shares, out, meter), left_out)

    def complete(self, model: UpdateId, older: UpdateId) -> None:
        """Copy missing layers of a peer's model from an older model of this peer, and drop the older model."""
        self._known(model).complete_from(self._known(older))
        self.drop(older)

    def mark(self) -> None:
        """Mark the current weights. Steps measure the drift from them."""
        self._drift_meter().mark(self.weights)

    def _drift_meter(self) -> DriftMeter:
        """Return the meter. The first call creates it and marks the current weights."""
        self._drift = self._drift or DriftMeter(self.weights)
        return self._drift

    @property
    def norm(self) -> float:
        """Euclidean norm of the current weights. It is not finite if a weight is not."""
        return norm_of(self.weights)

    def state_tensors(self, kept: Iterable[int] = ()) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint, for `load_state`. They are views, and the next merge changes them.

        `kept` are the held versions to include.
        """
        state = {"version": torch.tensor(self.version), **self.optimizer_tensors()}
        state |= {f"weights/{name}": tensor for name, tensor in self.weights.sections()}
        if self._average is not None:
            state |= {f"average/{name}": tensor for name, tensor in self._average.state_tensors().items()}
        for version in kept:
            state |= {f"kept/{version}/{name}": part for name, part in self._held[version].sections()}
        for update, payload in self.inbox.items():
            state |= {f"inbox/{payload.kind}/{update}/{name}": part for name, part in payload.flat.sections()}
        return state

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the optimizers, for `load_optimizer`. They are views."""
        state = {f"optimizer/{name}": tensor for name, tensor in self._optimizers.state.items()}
        return {"optimizer_steps": self._steps.counts, **state}

    def load_optimizer(self, state: Mapping[str, Tensor]) -> None:
        """Load the optimizer state of another store with the same model and optimizers."""
        self._optimizers.load(optimizer_sections(state))
        self._steps.load(state["optimizer_steps"])

    def fits_optimizer(self, state: Mapping[str, Tensor]) -> bool:
        """Return whether the optimizer state in saved tensors has the layout of this store's optimizers."""
        return self._optimizers.fits(optimizer_sections(state))

    def load_state(self, state: Mapping[str, Tensor], *, with_optimizer: bool = True) -> None:
        """Load saved tensors into a new store. Kept versions can be acquired.

        Without `with_optimizer`, the optimizers start with a new state, and their steps are counted from 0. Raise
        CheckpointError if the tensors belong to another model or optimizer.
        """
        saved = StoredTensors.of(state)
        if with_optimizer:
            self._optimizers.load(saved.optimizer)
        copy_sections(saved.weights, self.weights, "weights")
        if with_optimizer:
            self._steps.load(saved.optimizer_steps)
        self.version = saved.version
        if self._average is not None:
            self._average.count = int(saved.average.pop(COUNT, torch.tensor(0)))
            copy_sections(saved.average or dict(self.weights.sections()), self._average.weights, "average")
        for version, sections in saved.kept.items():
            if version != self.version:
                block = self._held[version] = self._pool.take()
                self._holds[version] = 0
                copy_sections(sections, block, f"version {version}")
        for update, (kind, sections) in saved.inbox.items():
            block = FlatBuffer.empty(self.layout, self.weights.memory.device)  # the pool is for versions
            copy_sections(sections, block, f"update {update}")
            self.inbox[update] = Payload(kind, block)

    def _summed(self, updates: merge.Updates, chunks: Sequence[int]) -> FlatBuffer:
        """Return the sum of updates times their share, added as in `core/sum_tree`."""
        total = self._spare_block()
        merge.add_in_tree(updates, additions(chunks), total)
        return total

    def _combined(
        self, names: Iterable[UpdateId], updates: merge.Updates
    ) -> tuple[merge.Updates, Mapping[UpdateId, float] | None]:
        """Return the updates of a merge, as one with the total share if there is a rule.

        Also return the share of each update's values that the rule left out.
        """
        if self._combine is None:
            return updates, None
        block = self._spare_block()
        left_out = merge.combine(self._combine, updates, block)
        return [(block, sum(share for _, share in updates))], dict(zip(names, left_out, strict=True))

    def _without_change(self, names: Iterable[UpdateId]) -> MergeNorms:
        """Make a version with the weights of the last one. All updates are left out."""
        base, out, _ = self._open(0)
        if out is not base:
            out.copy_(base)
        left_out = dict.fromkeys(names, 1.0)
        self._close(left_out, out, None)
        return MergeNorms(None, None, left_out=left_out)

    def _spare_block(self) -> FlatBuffer:
        if self._spare is None:
            self._spare = FlatBuffer.empty(self.layout, self.weights.memory.device)
        return self._spare

    def _clip_factor(self, updates: merge.Updates, first: UpdateId) -> Tensor | None:
        """Return the factor that clips merged gradients. None for deltas, which are clipped in local steps."""
        if self._max_grad_norm is None or self.inbox[first].kind not in GRADIENT_KINDS:
            return None
        return merged_clip_factor(updates, self._max_grad_norm)

    def _base(self, facts: Facts) -> FlatBuffer | None:
        """Return the weights that the task started from, or None if the version is no longer kept."""
        return self.weights if facts.based_on == self.version else self._held.get(facts.based_on)

    def _known(self, update: UpdateId) -> Payload:
        if update not in self.inbox:
            message = f"update {update} is not in the inbox, which has {sorted(self.inbox)}"
            raise ProtocolError(message, "no_such_update", update=update)
        return self.inbox[update]

    def _updates(
        self, shares: Mapping[UpdateId, float], kinds: tuple[Kind, ...], verb: str, other: str
    ) -> merge.Updates:
        """Return the blocks and shares of a merge. Raise ProtocolError, before any change, if the merge is invalid."""
        if not shares:
            raise ProtocolError(f"{verb} has no updates: it needs at least one", "empty_merge")
        for update, share in shares.items():
            payload = self._known(update)
            if payload.kind not in kinds:
                raise ProtocolError(
                    f"{verb} cannot merge {update}: it is of kind {payload.kind}, not {' or '.join(kinds)}. "
                    f"Use {other} instead",
                    "unmergeable_update",
                    update=update,
                    kind=payload.kind,
                )
            if not (isfinite(share) and share >= 0):
                message = f"update {update} has the share {share}: shares must be finite and at least 0"
                raise ProtocolError(message, "invalid_share", update=update, share=share)
        return [(self.inbox[update].flat, share) for update, share in shares.items()]

    def _open(self, measure: int) -> tuple[FlatBuffer, FlatBuffer, Meter | None]:
        """Return the base of the next version, its block, and a meter if `measure` is not 0.

        The base is the current version, or the version that the server of the newest update read. The block is new if
        the current version is held.
        """
        base = self.weights if self._read is None else self._held.get(self._read, self.weights)
        self._read = None
        out = self._pool.take() if self.version in self._holds else self.weights
        return base, out, Meter.after(self._meter, base, measure) if measure else None

    def _close(self, merged: Iterable[UpdateId], out: FlatBuffer, meter: Meter | None) -> MergeNorms | None:
        self.weights, self._meter = out, meter
        self.version += 1
        if self._average is not None:
            self._average.update(out)
        for update in merged:
            self.inbox.pop(update).release()
        return meter.change if meter else None


def _with_left_out(change: MergeNorms | None, left_out: Mapping[UpdateId, float] | None) -> MergeNorms | None:
    """Return the measurements of a merge with the shares that a rule left out, if there is a rule."""
    return change if left_out is None else replace(change or MergeNorms(None, None), left_out=left_out)
