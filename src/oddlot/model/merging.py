"""The two merges, optimizer step and weighted average, and their measurements, in a single pass over memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from numbers import Real

import torch
from torch import Tensor

from oddlot.core.peers import Drift
from oddlot.core.support.errors import JobError, OddlotError
from oddlot.core.support.user_code import place_of, trace_of, user_code_failed
from oddlot.core.tasks import UpdateId
from oddlot.model.combine import Combine, Section
from oddlot.model.flat_buffer import FlatBuffer, Role
from oddlot.model.optimizer_math import Directions, HubOptimizer
from oddlot.model.running_averages import average
from oddlot.model.step_counts import Stretch, Stretches
from oddlot.model.vector_ops import chunks, is_finite, mixer, move

Updates = Sequence[tuple[FlatBuffer, float]]
"""Update blocks with their shares."""


@dataclass(frozen=True, slots=True)
class MergeNorms:
    """The measurements of a merge."""

    norm: float | None
    """Euclidean norm of the change of the trainable parameters. None if not measured."""
    inner: float | None
    """Inner product of the summed directions of this window and of the previous window. None if this merge does not end
    a window, or if there is no previous window."""
    drift: Drift | None = None
    """Distance from the marked weights. None if not measured or not finite."""
    left_out: Mapping[UpdateId, float] | None = None
    """Share of each update's values that a robust rule left out. None without such a rule."""


@dataclass(slots=True)
class Meter:
    """Measures one merge, chunk by chunk."""

    window: int
    """Number of merges per window."""
    summed: dict[int, Tensor]
    """Summed directions of this window, by section. Empty if a window is one merge."""
    before: dict[int, Tensor]
    """Summed directions of the previous window, by section."""
    merges: int = 1
    """Number of this merge within its window, from 1."""
    known: bool = False
    """Whether there was a previous window."""
    _square: float = 0.0
    _inner: float = 0.0

    @classmethod
    def after(cls, last: "Meter | None", weights: FlatBuffer, window: int) -> "Meter":
        """Return a meter for the merge after the merge of `last`."""
        if last is not None and last.window == window:
            ended = last.merges == window
            merges = 1 if ended else last.merges + 1
            return cls(window, last.summed, last.before, merges, last.known or ended)
        trainable = {index: weights.section(index) for index in weights.layout.of_role("trainable")}

        def room() -> dict[int, Tensor]:
            return {index: torch.empty_like(part, dtype=_wide(part)) for index, part in trainable.items()}

        return cls(window, room() if window > 1 else {}, room())

    def watch(self, index: int, span: slice, direction: Tensor) -> None:
        """Record that a chunk of section `index` is merged along `direction`."""
        if self.window > 1:
            summed = self.summed[index][span]
            direction = summed.copy_(direction) if self.merges == 1 else summed.add_(direction)
        if self.merges < self.window:
            return
        before = self.before[index][span]
        if self.known:
            self._inner += (before * direction).sum().item()
        before.copy_(direction)

    def moved(self, old: Tensor, new: Tensor) -> None:
        """Record that a chunk of the weights changed from `old` to `new`."""
        self._square += torch.linalg.vector_norm((new - old).float()).item() ** 2

    @property
    def change(self) -> MergeNorms:
        """The measured change."""
        return MergeNorms(
            sqrt(self._square), self._inner if self.known and self.merges == self.window else None
        )


def step(
    optimizers: Mapping[int, HubOptimizer],
    weights: FlatBuffer,
    updates: Updates,
    out: FlatBuffer,
    stretches: Stretches,
    meter: Meter | None = None,
    factor: Tensor | None = None,
) -> None:
    """Write one step with the sum of share x update into `out`. `out` may be `weights`.

    `optimizers` has the optimizer of each trainable section, by index. Call their method `begin` first. Parameters in a
    stretch without a step keep their values. `factor` is multiplied with the sum, to clip it.
    """
    shares = [share for _, share in updates]
    is_exact = is_alone(updates)
    if factor is not None and not is_exact:
        shares, factor = [share * float(factor) for share in shares], None
    for index, source, target, streams in _sections("trainable", weights, updates, out):
        optimizer = optimizers[index]
        is_wide = is_exact or source.dtype == _wide(source)
        summed = meter is not None or not optimizer.linear or not is_wide or factor is not None
        for span, steps, direction in _directions(stretches[index], source, streams, shares, summed, factor):
            old = source[span].clone() if meter else source[span]
            if meter:
                meter.watch(index, span, direction[0][0])
            if steps is None:
                target[span].copy_(source[span])
            else:
                optimizer.apply(
                    index, span, steps, direction=direction, source=source[span], target=target[span]
                )
            if meter:
                meter.moved(old, target[span])
    _move_buffers(weights, updates, out)


def add_in_tree(updates: Updates, additions: Sequence[int], out: FlatBuffer) -> None:
    """Write the sum of updates, times their common share, into `out`, with the buffers of the first update.

    `additions`: after each update, the number of additions of the two latest partial sums.
    """
    share = updates[0][1]
    for _, _, target, streams in _sections("trainable", out, updates, out):
        rooms: list[Tensor] = []
        for span in chunks(target.numel(), target.device):
            stack: list[Tensor] = []
            for stream, count in zip(streams, additions, strict=True):
                stack.append(stream[span])
                for _ in range(count):
                    right = stack.pop()
                    while len(rooms) < len(stack):
                        rooms.append(torch.empty_like(right))
                    stack[-1] = torch.add(stack[-1], right, out=rooms[len(stack) - 1][: right.numel()])
            torch.mul(stack[0], share, out=target[span])
    for role in ("buffer", "counter"):
        for _, _, target, streams in _sections(role, out, updates, out):
            target.copy_(streams[0])
    flags = torch.stack([flat.without_gradient for flat, _ in updates])
    out.without_gradient.copy_(flags.amin(dim=0))


def combine(rule: Combine, updates: Updates, out: FlatBuffer) -> list[float]:
    """Write the updates' trainable parameters, combined by `rule`, into `out`. Their shares are ignored.

    Each number of the buffers and counters is the lower median of the updates that were used at all: it is one of their
    values, so constants, counts and flags stay what they are. Return the share of each update's values left out.
    """
    sections = [
        Section(streams, target) for _, _, target, streams in _sections("trainable", out, updates, out)
    ]
    left_out = _left_out(rule, sections, len(updates))
    used = [update for update, share in zip(updates, left_out, strict=True) if share < 1] or updates
    for role in ("buffer", "counter"):
        for _, _, target, streams in _sections(role, out, used, out):
            for span in chunks(target.numel(), target.device):
                column = torch.stack([stream[span] for stream in streams])
                # Not all integers can be sorted.
                column = column if column.is_floating_point() else column.long()
                target[span].copy_(column.sort(dim=0).values[(len(used) - 1) // 2])
    flags = torch.stack([flat.without_gradient for flat, _ in used])
    out.without_gradient.copy_(flags.amin(dim=0))
    return left_out


def _left_out(rule: Combine, sections: Sequence[Section], updates: int) -> list[float]:
    """Let a rule combine sections. Return the share of each update's values left out. Raise JobError if it fails."""
    name = place_of(type(rule))
    try:
        found: object = rule.combine(sections)
    except OddlotError:
        raise
    except Exception as error:
        raise user_code_failed("the hub", trace_of(error), f" in the rule {name}") from error
    shares = list(found) if isinstance(found, Iterable) else []
    if len(shares) != updates or not all(
        isinstance(share, Real) and 0 <= float(share) <= 1 for share in shares
    ):
        message = (
            f"the rule {name} returned {found!r} for {updates} updates: return the share of the values left out of "
            "each update, from 0 to 1"
        )
        raise JobError(message, "wrong_left_out", rule=name, updates=updates)
    if not all(is_finite(section.out) for section in sections):
        message = f"the rule {name} made NaN or infinity of finite updates"
        raise JobError(message, "rule_not_finite", rule=name, updates=updates)
    return [float(share) for share in shares]


def is_alone(updates: Updates) -> bool:
    """Return whether a merge is of one update with share 1, so that its step has the bits of `torch.optim`."""
    return len(updates) == 1 and updates[0][1] == 1


def _directions(
    stretches: Sequence[Stretch],
    section: Tensor,
    streams: Sequence[Tensor],
    shares: Sequence[float],
    summed: bool,
    factor: Tensor | None,
) -> Iterator[tuple[slice, int | None, Directions]]:
    """Yield the chunks of a section, each with its number of steps and its direction.

    With `summed`, the direction is a single tensor, and is multiplied with `factor`.
    """
    mix, scratch = mixer(section), _scratch(section) if summed else section
    for span, steps in _spans(stretches, section.device):
        direction: Directions = ([stream[span] for stream in streams], shares)
        if summed:
            total = scratch[: span.stop - span.start]
            mix(total, 0.0, *direction)
            if factor is not None:
                total.mul_(factor)
            direction = ([total.to(section.dtype)], [1.0])
        yield span, steps, direction


def _spans(stretches: Sequence[Stretch], device: torch.device) -> Iterator[tuple[slice, int | None]]:
    """Yield the chunks of each stretch, with its number of steps."""
    for start, stop, steps in stretches:
        for chunk in chunks(stop - start, device):
            yield slice(start + chunk.start, start + chunk.stop), steps


def blend(
    weights: FlatBuffer,
    updates: Updates,
    out: FlatBuffer,
    meter: Meter | None = None,
    own_whole: bool = False,
) -> None:
    """Write (1 - sum of shares) x weights + sum of share x update into `out`. `out` may be `weights`.

    With `own_whole`, counters and buffers with integer values keep the values of `weights`.
    """
    shares = [share for _, share in updates]
    for index, source, target, streams in _sections("trainable", weights, updates, out):
        for span, old in _towards(source, target, streams, shares, 1 - sum(shares), meter is not None):
            if meter:
                meter.watch(index, span, old - target[span])
                meter.moved(old, target[span])
    _move_buffers(weights, updates, out, own_whole)


def _sections(
    role: Role, weights: FlatBuffer, updates: Updates, out: FlatBuffer
) -> Iterator[tuple[int, Tensor, Tensor, list[Tensor]]]:
    for index in weights.layout.of_role(role):
        yield index, weights.section(index), out.section(index), [flat.section(index) for flat, _ in updates]


def _scratch(section: Tensor) -> Tensor:
    """Return memory for the sums of a chunk. 16-bit floats are summed in float32."""
    first = next(chunks(section.numel(), section.device), slice(0, 0))
    return torch.empty(first.stop, dtype=_wide(section), device=section.device)


def _wide(section: Tensor) -> torch.dtype:
    return torch.promote_types(section.dtype, torch.float32)


def _towards(
    source: Tensor,
    target: Tensor,
    streams: Sequence[Tensor],
    shares: Sequence[float],
    keep: float,
    remember: bool = False,
) -> Iterator[tuple[slice, Tensor]]:
    """Compute target <- keep x source + sum of share x stream, and yield each chunk with its source.

    With `remember`, the yielded source is a copy from before the change.
    """
    mix, scratch = mixer(source), _scratch(source)
    for span in chunks(source.numel(), source.device):
        old = source[span].clone() if remember else source[span]
        parts = [stream[span] for stream in streams]
        if scratch.dtype != source.dtype:
            mixed = scratch[: old.numel()].copy_(old)
            mix(mixed, keep, parts, shares)
            target[span].copy_(mixed)
        else:
            move(mix, source[span], target[span], keep, parts, shares)
        yield span, old


def _move_buffers(weights: FlatBuffer, updates: Updates, out: FlatBuffer, own_whole: bool = False) -> None:
    """Move running averages by min(1, sum of shares) towards the updates' mean, and add the mean increment to counters.

    Integers and flags take the value of the first update with the largest share. With `own_whole`, they and the
    counters keep their values.
    """
    total = sum(share for _, share in updates)
    used = [(flat, share / total) for flat, share in updates if share]
    means = [mean for _, mean in used]
    for _, source, target, streams in _sections("buffer", weights, used, out):
        whole = source if own_whole or not used else streams[means.index(max(means))]
        if used and source.is_floating_point():
            average(source, target, streams, means, min(1.0, total), whole)
        else:
            target.copy_(whole)
    counted = [] if own_whole else used
    for _, source, target, streams in _sections("counter", weights, counted, out):
        pairs = zip(streams, counted, strict=True)
        mean = sum((stream.double() * mean for stream, (_, mean) in pairs), start=0.0)
        # PyTorch cannot add unsigned integers except uint8.
        target.copy_(source.long() + torch.as_tensor(mean).round().long().to(source.device))
