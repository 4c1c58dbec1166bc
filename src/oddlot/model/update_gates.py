"""The gates of every run, which accept or reject arriving updates."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from math import isfinite

from torch import Tensor

from oddlot.core.events import TOO_LARGE
from oddlot.core.support.errors import OddlotError, Rejection
from oddlot.core.support.user_code import place_of, trace_of, user_code_failed
from oddlot.core.support.validation import MAX_UPDATE_RATIO
from oddlot.core.tasks import Kind, UpdateId
from oddlot.model.arrival import Arrival, norm_of
from oddlot.model.combine import Gate
from oddlot.model.vector_ops import is_finite

MIN_UPDATES, RECENT_UPDATES = 20, 100
"""Number of norms before `UsualNorm` is active, and number of newest norms in its median."""
USUAL_FACTOR = 10.0
"""An update is accepted if its norm is within this factor of the largest accepted norm, or of the last two rejected
norms."""


def standard_gates(max_update_ratio: float | None = MAX_UPDATE_RATIO) -> tuple[Gate, ...]:
    """Return the default gates: an update must fit the model, be finite and not have an unusually large norm."""
    return FitsModel(), Finite(), UsualNorm(max_update_ratio)


class FitsModel(Gate):
    """Rejects an update with another kind than announced or with another layout."""

    def check(self, arrival: Arrival) -> None:
        """Raise Refusal if the update does not fit."""
        facts, layout, needed = arrival.facts, arrival.flat.layout, arrival.weights.layout
        if arrival.kind != facts.kind:
            message = f"update {facts.id} was announced as {facts.kind} and came as {arrival.kind}"
            raise Rejection(message, "other_kind", update=facts.id, announced=facts.kind, kind=arrival.kind)
        if layout is not needed and layout.fingerprint != needed.fingerprint:
            message = f"update {facts.id} is of another model: its block has another layout"
            raise Rejection(message, "other_layout", update=facts.id, bytes=layout.bytes)


class Finite(Gate):
    """Rejects an update with NaN or infinity.

    A buffer may have infinities at the same positions as the model or the task's version. Examples are masks and the
    initial ranges of an observer.
    """

    def check(self, arrival: Arrival) -> None:
        """Raise Refusal if the update is not finite."""
        flat, weights = arrival.flat, arrival.weights
        norm = norm_of(flat) if arrival.norm is None else arrival.norm
        known = [weights, *([] if arrival.base is None else [arrival.base])]
        buffers = flat.layout.of_role("buffer")
        if isfinite(norm) and all(
            _is_sound(flat.section(at), [block.section(at) for block in known]) for at in buffers
        ):
            return
        update, loss, bad = arrival.facts.id, arrival.facts.loss, dict[str, int]()
        for name, view in flat.views():
            if count := _new_infinities(view, [block.view(name) for block in known]):
                bad[name] = count
        named = [f"{name} ({count} of {flat.view(name).numel()})" for name, count in bad.items()]
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""
        its_loss = "NaN or infinite" if loss is None else f"{loss:.3g}"
        message = f"update {update} is not finite in {', '.join(named[:3])}{more}; its loss is {its_loss}"
        raise Rejection(message, "numbers_not_finite", update=update, tensors=bad, loss=loss)


class UsualNorm(Gate):
    """Rejects an update with a norm far above the running median of its kind, because it could undo the training.

    This is the Euclidean norm of the trainable parameters of a gradient or delta; for a sum, that of its mean. For
    weights, it is the norm of the difference from the version that the task started from. If the median is 0 or
    `max_ratio` is None, no update is rejected.

    Two kinds of large norms are accepted: norms within a factor of 10 of the largest accepted norm (such as the norm of
    a rare sample, when most samples are fitted), and the third of three similar norms (such as after an increase of the
    learning rate).
    """

    def __init__(self, max_ratio: float | None = MAX_UPDATE_RATIO) -> None:
        self.max_ratio = max_ratio
        self._recent: dict[Kind, deque[float]] = {}
        self._sorted: dict[Kind, list[float]] = {}
        self._largest: dict[Kind, float] = {}
        self._rejected: dict[Kind, deque[float]] = {}

    def check(self, arrival: Arrival) -> None:
        """Raise Refusal if the norm of the update is too large."""
        if arrival.norm is not None:
            weight = arrival.facts.weight_merged if arrival.kind == "sum" else 1
            self.note(arrival.facts.id, arrival.kind, arrival.norm / (weight or 1))

    def note(self, update: UpdateId, kind: Kind, norm: float) -> None:
        """Record the norm of an update. Raise Refusal, without recording it, if it is too large."""
        recent = self._recent.setdefault(kind, deque(maxlen=RECENT_UPDATES))
        ordered = self._sorted.setdefault(kind, [])
        median = ordered[len(ordered) // 2] if len(ordered) >= MIN_UPDATES else 0.0
        if self.max_ratio is not None and median and not norm <= self.max_ratio * median:
            self._reject_unusual(update, kind, norm, median)
        self._largest[kind] = max(norm, self._largest.get(kind, 0.0))
        if len(recent) == RECENT_UPDATES:
            del ordered[bisect_left(ordered, recent[0])]
        recent.append(norm)
        insort(ordered, norm)

    def _reject_unusual(self, update: UpdateId, kind: Kind, norm: float, median: float) -> None:
        """Raise Refusal unless earlier norms, accepted or rejected, were similarly large."""
        rejected = self._rejected.setdefault(kind, deque(maxlen=2))
        repeated = len(rejected) == 2 and all(
            norm / USUAL_FACTOR <= each <= norm * USUAL_FACTOR for each in rejected
        )
        rejected.append(norm)
        if repeated or norm <= USUAL_FACTOR * self._largest[kind]:
            return
        message = (
            f"update {update} has norm {norm:.3g}, {norm / median:.3g} times the running median "
            "(max_update_ratio=None accepts every update)"
        )
        raise Rejection(message, TOO_LARGE, update=update, norm=norm, median=median)


STANDARD_GATES = (FitsModel, Finite, UsualNorm)
"""The gates that every run has."""


def _is_sound(section: Tensor, known: Sequence[Tensor]) -> bool:
    """Return whether a section is finite at all positions where the `known` sections are finite."""
    return not section.is_floating_point() or is_finite(section) or not _new_infinities(section, known)


def _new_infinities(values: Tensor, known: Sequence[Tensor]) -> int:
    """Return the number of values that are not finite, but are finite in all `known` tensors."""
    bad = ~values.isfinite()
    for tensor in known:
        bad &= tensor.isfinite()
    return int(bad.sum())


def pass_gate(gate: Gate, arrival: Arrival) -> None:
    """Let a gate check an update. Add the name of the gate to its Rejection, unless every run has this gate.

    Raise JobError if the gate raises any other exception.
    """
    try:
        gate.check(arrival)
    except Rejection as rejection:
        if not isinstance(gate, STANDARD_GATES):
            rejection.fields["gate"] = type(gate).__name__
        raise
    except OddlotError:
        raise
    except Exception as error:
        raise user_code_failed("the hub", trace_of(error), f" in the gate {place_of(type(gate))}") from error
