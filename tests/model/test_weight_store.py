"""The store: merges, rejected updates, held versions, and saved state."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oddlot.core.optimizers import SGD, Adam
from oddlot.core.support.errors import CheckpointError, ProtocolError, Rejection
from oddlot.core.tasks import Facts, Kind
from oddlot.model import vector_ops as kernels
from oddlot.model.block_pool import Pool
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.merging import MergeNorms
from oddlot.model.null_store import NullStore
from oddlot.model.payload import Payload
from oddlot.model.weight_store import WeightStore
from tests.transcripts import raises

NAN = float("nan")


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def make_store(lr: float = 1.0, momentum: float = 0.0, **options: Any) -> WeightStore:
    flat = FlatBuffer.empty(Layout.from_module(model()))
    return WeightStore(flat, SGD(lr, momentum), **options)


def other_model() -> FlatBuffer:
    return FlatBuffer.empty(Layout.from_module(nn.Linear(9, 9)))


def block(store: WeightStore, weight: float = 0.0, mean: float = 0.0, batches: int = 0) -> FlatBuffer:
    """Return a block with the trainable parameters `weight`, the running means `mean` and the counters `batches`."""
    flat = FlatBuffer.empty(store.layout)
    flat.view("0.weight").fill_(weight)
    flat.view("0.bias").fill_(weight)
    flat.view("1.running_mean").fill_(mean)
    flat.view("1.num_batches_tracked").fill_(batches)
    return flat


def arrive(
    store: WeightStore,
    name: str,
    flat: FlatBuffer,
    kind: Kind = "gradient",
    free: Callable[[], None] | None = None,
) -> None:
    store.receive(Facts(name, "w1", store.version, 1, kind), Payload(kind, flat, free))


def steps(store: WeightStore, *asked: tuple[float, int]) -> list[MergeNorms | None]:
    """Make a step for each (gradient value, window of the measurement), and return the measurements."""
    changes = []
    for value, window in asked:
        arrive(store, "a", block(store, value))
        changes.append(store.step({"a": 1.0}, window))
    return changes


def weight(store: WeightStore) -> float:
    (value,) = set(store.weights.view("0.weight").flatten().tolist())
    assert isinstance(value, float)
    return value


# --- merging -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gradient", "delta"])
def test_step_applies_the_weighted_sum_of_updates(kind: Kind) -> None:
    store = make_store(lr=0.5)
    arrive(store, "a", block(store, 1.0), kind)
    arrive(store, "b", block(store, 3.0), kind)
    store.step({"a": 0.25, "b": 0.75})
    assert weight(store) == -0.5 * (0.25 + 2.25)
    assert (store.version, store.inbox) == (1, {})


def test_blend_moves_towards_the_given_weights() -> None:
    store = make_store()
    store.weights.view("0.weight").fill_(8.0)
    arrive(store, "a", block(store, 4.0), "weights")
    arrive(store, "b", block(store, 0.0), "weights")
    store.blend({"a": 0.5, "b": 0.25})
    assert weight(store) == 0.25 * 8 + 0.5 * 4


def test_partial_model_is_completed_from_an_older_one() -> None:
    """An average does not change layers that both models lack."""
    store, freed = make_store(), list[str]()
    store.weights.view("1.weight").fill_(5.0)
    for name, value, layers in (("old", 2.0, (0,)), ("new", 4.0, (1,)), ("all", 8.0, None)):
        payload = Payload("weights", block(store, value), partial(freed.append, name), layers)
        store.receive(Facts(name, "w1", 0, 1, "weights"), payload)

    def values() -> list[float]:
        return [store.weights.view(name)[0].item() for name in ("0.bias", "1.weight")]

    store.complete("new", "old")
    store.blend({"new": 0.5}, keep=True)
    assert (weight(store), *values()) == (1.0, 2.0, 5.0)
    store.weights.view("1.weight").fill_(6.0)
    store.blend({"new": 0.5}, keep=True)
    assert (weight(store), *values()) == (1.5, 3.0, 6.0)
    store.complete("all", "new")
    store.blend({"all": 0.5})
    assert (weight(store), *values()) == (4.75, 5.5, 3.0)
    assert (freed, store.inbox) == (["old", "new", "all"], {})


@pytest.mark.parametrize(("merge", "kind"), [("step", "gradient"), ("blend", "weights")])
@pytest.mark.parametrize(
    ("shares", "mean", "batches"),
    [
        ((1.0,), 4.5, 14),  # one update of share 1: its values, exactly its increment
        ((0.5,), 3.5, 14),  # half of the way
        ((0.25, 0.75), 7.5, 17),  # 0.25 x 4.5 + 0.75 x 8.5; 10 + 0.25 x 4 + 0.75 x 8
        ((1.0, 1.0), 6.5, 16),  # at most the mean of the updates
        ((0.1, 0.9), 8.1, 18),  # increments are rounded: 10 + 0.1 x 4 + 0.9 x 8
        ((0.0,), 2.5, 10),  # no share, no move
    ],
)
def test_buffers_move_towards_the_mean_of_updates(
    merge: str, kind: Kind, shares: tuple[float, ...], mean: float, batches: int
) -> None:
    store = make_store()
    store.weights.view("1.running_mean").fill_(2.5)
    store.weights.view("1.num_batches_tracked").fill_(10)
    for i in range(len(shares)):
        arrive(store, f"u{i}", block(store, mean=4.5 + 4 * i, batches=4 + 4 * i), kind)
    getattr(store, merge)({f"u{i}": share for i, share in enumerate(shares)})
    assert store.weights.view("1.running_mean").tolist() == pytest.approx([mean] * 2)
    assert store.weights.view("1.num_batches_tracked").item() == batches


@pytest.mark.parametrize(("merge", "kind"), [("step", "gradient"), ("blend", "weights")])
@pytest.mark.parametrize(
    ("shares", "expected"), [((0.5, 0.5), 1), ((0.2, 0.3), 2), ((0.0, 0.0), 0), ((1.0, 1.0), 1)]
)
def test_integer_buffers_take_the_value_of_the_largest_share(
    merge: str, kind: Kind, shares: tuple[float, ...], expected: int
) -> None:
    """Integers such as a pointer into a queue must not be averaged."""
    module = model()
    module.register_buffer("pointer", torch.zeros(1, dtype=torch.int64))
    module.register_buffer("ready", torch.tensor(False))
    store = WeightStore(FlatBuffer.empty(Layout.from_module(module)), SGD(0.1))
    for value, name in enumerate("ab", 1):
        flat = block(store)
        flat.view("pointer").fill_(value)
        flat.view("ready").fill_(True)
        arrive(store, name, flat, kind)
    getattr(store, merge)(dict(zip("ab", shares, strict=True)))
    assert store.weights.view("pointer").item() == expected
    assert store.weights.view("ready").item() == bool(expected)


INF = float("inf")
BUFFERS: dict[str, tuple[float, tuple[float, float], float]] = {
    "constant": (0.1, (0.1, 0.1), 0.1),
    "constant mask": (-INF, (-INF, -INF), -INF),
    "average": (0.5, (1.25, 2.25), 0.2 * 0.5 + 0.8 * 2.0),
    "count": (3.0, (5.0, 8.0), 8.0),
    "large average": (1e9, (2e9, 4e9), 0.2e9 + 0.8 * 3.5e9),  # above 2^23, every float32 is an integer
    "range": (INF, (-1.5, -3.5), -3.0),
    "range of one worker": (INF, (INF, -3.5), -3.5),
    "range of no worker": (INF, (INF, INF), INF),
    "late range": (-1.5, (INF, -3.5), 0.2 * -1.5 + 0.8 * -3.5),
}
"""Old value, values of two updates with the shares 0.2 and 0.6, and new value."""


@pytest.mark.parametrize(("merge", "kind"), [("step", "delta"), ("blend", "weights")])
@pytest.mark.parametrize("held", [False, True], ids=["in place", "copied"])
def test_only_running_averages_are_averaged(merge: str, kind: Kind, held: bool) -> None:
    """Constants are kept, integers take the value of one update, and infinities are excluded from means."""
    module = model()
    module.register_buffer("values", torch.tensor([old for old, *_ in BUFFERS.values()]))
    start = FlatBuffer.empty(Layout.from_module(module))
    start.gather(module)
    store = WeightStore(start, SGD(0.1), gates=())
    if held:
        store.acquire(0)
    for number in range(2):
        flat = block(store)
        flat.view("values").copy_(torch.tensor([values[number] for _, values, _ in BUFFERS.values()]))
        arrive(store, str(number), flat, kind)
    getattr(store, merge)({"0": 0.2, "1": 0.6})
    found = dict(zip(BUFFERS, store.weights.view("values").tolist(), strict=True))
    assert found == pytest.approx({name: new for name, (*_, new) in BUFFERS.items()}, rel=1e-6)
    assert found["constant"] == torch.tensor(0.1).item(), "every bit"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("merge", "kind"), [("step", "gradient"), ("blend", "weights")])
def test_half_precision_merges_keep_small_shares(merge: str, kind: Kind, dtype: torch.dtype) -> None:
    layout = Layout.from_module(nn.Linear(40, 1, bias=False, dtype=dtype))
    store = WeightStore(FlatBuffer.empty(layout), SGD(1.0))
    for i in range(300):
        flat = FlatBuffer.empty(layout)
        flat.view("weight").fill_(-1.0 if kind == "gradient" else 1.0)
        arrive(store, str(i), flat, kind)
    getattr(store, merge)({str(i): 1 / 300 for i in range(300)})
    torch.testing.assert_close(store.weights.view("weight"), torch.ones(1, 40, dtype=dtype))


@pytest.mark.parametrize(("merge", "kind"), [("step", "gradient"), ("blend", "weights")])
def test_chunks_do_not_change_a_merge(merge: str, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> Tensor:
        torch.manual_seed(1)
        layout = Layout.from_module(nn.Linear(1009, 7))
        store = WeightStore(FlatBuffer.empty(layout), SGD(0.1, 0.9))
        for i in range(5):
            flat = FlatBuffer.empty(layout)
            flat.section(0).normal_()
            arrive(store, str(i), flat, kind)
        getattr(store, merge)({str(i): 0.1 + i / 100 for i in range(5)})
        return store.weights.section(0).clone()

    whole = run()
    monkeypatch.setattr(kernels, "CHUNK_NUMBERS", 100)
    monkeypatch.setattr(kernels, "LARGE_NUMBERS", 1)
    torch.testing.assert_close(run(), whole, rtol=1e-5, atol=1e-6)


def test_measured_step_has_norm_and_inner_product() -> None:
    changes = steps(make_store(lr=0.5), (1.0, 1), (-2.0, 1), (1.0, 0), (3.0, 1))
    norms = [change and change.norm for change in changes]
    assert norms == [*map(pytest.approx, (0.5 * 8**0.5, 1.0 * 8**0.5, None, 1.5 * 8**0.5))]
    assert [change and change.inner for change in changes] == [None, pytest.approx(-2.0 * 8), None, None]


def test_step_windows_are_compared_by_their_sums() -> None:
    """A step that is not measured, or has another window, starts a new window. bfloat16 is summed in float32."""
    asked = [(1.0, 2), (-3.0, 2), (5.0, 2), (2.0, 2), (1.0, 0), *[(1.0, 2)] * 3, (1.0, 3), (1.0, 1), (2.0, 1)]
    inners = [change and change.inner for change in steps(make_store(lr=0.5), *asked)]
    assert inners == [None, None, None, pytest.approx(-2.0 * 7.0 * 8), *[None] * 6, pytest.approx(2.0 * 8)]
    store = WeightStore(FlatBuffer.empty(Layout.from_module(model().bfloat16())), SGD(0.0))
    changes = steps(store, (256.0, 2), (1.0, 2), (1.0, 2), (0.0, 2))  # bfloat16 cannot represent 257
    assert [change and change.inner for change in changes] == [None] * 3 + [257.0 * 8]


def test_windows_detect_progress_despite_sign_changes() -> None:
    inners: dict[int, list[float]] = {1: [], 2: []}
    for window, found in inners.items():
        store = make_store(lr=0.0)
        for step in range(6):
            flat = block(store, 1.0)
            flat.view("0.weight").fill_(10.0 * (-1) ** step)
            arrive(store, str(step), flat)
            change = store.step({str(step): 1.0}, window)
            found.extend([] if change is None or change.inner is None else [change.inner])
    assert max(inners[1]) < 0 < min(inners[2])
    assert [len(found) for found in inners.values()] == [5, 2]


@pytest.mark.parametrize("held", [False, True])
def test_measured_blend_has_its_norm(held: bool) -> None:
    store = make_store()
    if held:
        store.acquire(0)
    arrive(store, "a", block(store, 4.0), "weights")
    change = store.blend({"a": 0.5}, measure=1)
    assert change is not None
    assert change.norm == pytest.approx(2 * 8**0.5)


def test_measuring_does_not_change_the_step() -> None:
    plain, measured = make_store(0.1, 0.9), make_store(0.1, 0.9)
    for store in (plain, measured):
        steps(store, *[(1.0 + i, int(store is measured)) for i in range(5)])
    assert weight(plain) == pytest.approx(weight(measured), rel=1e-6)


# --- versions ------------------------------------------------------------------------------------


def test_acquired_version_is_not_overwritten() -> None:
    """A version that is no longer held is changed in place."""
    given: list[FlatBuffer] = []

    class Watched(Pool):
        def give(self, block: FlatBuffer) -> None:
            given.append(block)
            super().give(block)

    pool = Watched(lambda: FlatBuffer.empty(store.layout))
    store = make_store(pool=pool)
    first = store.acquire(0)
    assert store.acquire(0) is first
    steps(store, (1.0, 0), (1.0, 0))
    assert not first.view("0.weight").any()
    assert weight(store) == -2.0
    store.release(0)
    assert not given
    store.release(0)
    assert given == [first]
    assert pool.take() is first
    newest = store.weights
    store.acquire(2)
    store.release(2)
    steps(store, (1.0, 0))
    assert store.weights is newest


def test_merge_overwrites_every_number_of_a_reused_block() -> None:
    """A block from the pool has arbitrary values. All buffers and weights are written, for all shares."""
    store = make_store(pool=Pool(lambda: dirty))
    dirty = block(store, NAN, NAN, 77)
    store.weights.view("1.running_mean").fill_(2.0)
    store.acquire(0)
    arrive(store, "a", block(store, 1.0, mean=9.0, batches=3))
    store.step({"a": 0.0})
    assert store.weights is dirty
    assert weight(store) == 0.0
    assert store.weights.view("1.running_mean").tolist() == [2.0, 2.0]
    assert store.weights.view("1.num_batches_tracked").item() == 0


def test_acquired_version_exists_until_released() -> None:
    store = make_store()
    store.acquire(0)
    steps(store, (1.0, 0))
    assert store.acquire(0).view("0.weight").sum() == 0
    store.release(0)
    store.release(0)
    with raises(ProtocolError, "version_not_kept", version=0):
        store.acquire(0)
    with raises(ProtocolError, "version_not_acquired", version=0):
        store.release(0)


# --- the inbox -----------------------------------------------------------------------------------


def test_updates_are_released_once_when_merged_or_dropped() -> None:
    store, freed = make_store(), list[str]()
    for name in ("a", "b"):
        arrive(store, name, block(store), free=lambda name=name: freed.append(name))  # type: ignore[misc]
    store.drop("b")
    assert freed == ["b"]
    store.step({"a": 1.0})
    assert freed == ["b", "a"]
    payload = Payload("gradient", block(store), lambda: freed.append("c"))
    payload.release()
    payload.release()
    assert freed == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("where", "numbers"),
    [("0.weight", [NAN, float("inf")]), ("0.bias", [float("-inf")]), ("1.running_mean", [NAN])],
)
def test_update_with_bad_numbers_is_rejected(where: str, numbers: list[float]) -> None:
    store, freed = make_store(), list[str]()
    flat = block(store, 1.0)
    flat.view(where).view(-1)[: len(numbers)] = torch.tensor(numbers)
    with raises(Rejection, "numbers_not_finite", update="a", tensors={where: len(numbers)}):
        arrive(store, "a", flat, free=lambda: freed.append("a"))
    assert freed == ["a"]
    assert store.inbox == {}


def test_update_of_another_layout_or_kind_is_rejected() -> None:
    store = make_store()
    with raises(Rejection, "other_layout", update="a", bytes=other_model().layout.bytes):
        arrive(store, "a", other_model())
    with raises(Rejection, "other_kind", update="a", announced="gradient", kind="weights"):
        store.receive(Facts("a", "w1", 0, 1, "gradient"), Payload("weights", block(store)))
    again = FlatBuffer.empty(replace(store.layout))
    arrive(store, "a", again)


@pytest.mark.parametrize(
    ("act", "code", "fields"),
    [
        (lambda s: s.step({"points": 1.0}), "unmergeable_update", {"update": "points", "kind": "weights"}),
        (lambda s: s.blend({"a": 1.0}), "unmergeable_update", {"update": "a", "kind": "gradient"}),
        (lambda s: s.step({"a": 0.5, "z": 0.5}), "no_such_update", {"update": "z"}),
        (lambda s: s.drop("z"), "no_such_update", {"update": "z"}),
        (lambda s: s.step({}), "empty_merge", {}),
        (lambda s: s.step({"a": NAN}), "invalid_share", {"update": "a", "share": NAN}),
        (lambda s: s.step({"a": -1.0}), "invalid_share", {"update": "a", "share": -1.0}),
        (lambda s: arrive(s, "a", block(s)), "update_id_reused", {"update": "a"}),
    ],
    ids=["points", "gradient", "unknown", "dropped", "nothing", "nan", "negative", "again"],
)
def test_invalid_merge_raises_and_changes_nothing(
    act: Callable[[WeightStore], None], code: str, fields: dict[str, Any]
) -> None:
    store = make_store()
    arrive(store, "a", block(store, 1.0))
    arrive(store, "points", block(store, 1.0), "weights")
    with raises(ProtocolError, code, **fields):
        act(store)
    assert (store.version, weight(store), list(store.inbox)) == (0, 0.0, ["a", "points"])


# --- schedules -----------------------------------------------------------------------------------


def halved(merged: int, _: int) -> dict[int, float]:
    return {0: 0.5 ** (merged // 10)}


def test_step_with_merged_samples_follows_the_rates() -> None:
    """Without the number of merged samples, a step uses the full learning rate."""
    store = make_store(rates=halved)
    moved = []
    for merged in (25, None, 10, 0):
        arrive(store, "a", block(store, 1.0))
        before = weight(store)
        store.step({"a": 1.0}, merged=merged)
        moved.append(before - weight(store))
    assert moved == [0.25, 1.0, 0.5, 1.0]


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.25), (0.3, 0.3, 0.4)])
def test_merged_gradient_is_clipped_once(shares: tuple[float, ...]) -> None:
    """The norm is of the mean of the updates, so shares below 1 in total shorten the step further."""
    store = make_store(max_grad_norm=0.5)
    blocks = {f"w{at}": block(store, 1.0 + at) for at in range(len(shares))}
    for name, flat in blocks.items():
        arrive(store, name, flat)
    total, before = sum(shares), store.weights.section(0).clone()
    mean = sum(share / total * flat.section(0) for share, flat in zip(shares, blocks.values(), strict=True))
    assert isinstance(mean, Tensor)
    store.step(dict(zip(blocks, shares, strict=True)))
    torch.testing.assert_close(before - store.weights.section(0), total * 0.5 * mean / mean.norm())


def test_deltas_are_not_clipped_again() -> None:
    store = make_store(max_grad_norm=1e-3)
    flat = block(store, 1.0)
    store.receive(Facts("a:1", "a", 0, 1, "delta"), Payload("delta", flat))
    before = weight(store)
    store.step({"a:1": 1.0})
    assert before - weight(store) == 1.0


# --- saving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [SGD(0.1, 0.9), Adam(0.1)])
def test_loaded_store_continues_like_the_saved_one(rule: Any) -> None:
    def fresh() -> WeightStore:
        return WeightStore(FlatBuffer.empty(Layout.from_module(model())), rule)

    first = fresh()
    for i in range(3):
        arrive(first, str(i), block(first, 1.0 + i, mean=1.0, batches=2))
        first.step({str(i): 1.0})
    arrive(first, "w2:9", block(first, 7.0), "delta")
    state = {name: tensor.clone() for name, tensor in first.state_tensors().items()}
    second = fresh()
    second.load_state(state)
    assert second.version == 3
    assert second.inbox["w2:9"].kind == "delta"
    for store in (first, second):
        store.step({"w2:9": 1.0})
    assert torch.equal(first.weights.memory, second.weights.memory)


def test_acquired_versions_are_saved_and_loaded() -> None:
    first, second = make_store(), make_store()
    first.acquire(0)
    steps(first, (1.0, 0), (1.0, 0))
    first.acquire(2)
    second.load_state({name: tensor.clone() for name, tensor in first.state_tensors([0, 2]).items()})
    for version in (0, 2, 2):
        second.acquire(version)
    assert second.acquire(0).view("0.weight").sum() == 0
    assert second.acquire(2) is second.weights
    for _ in range(2):
        second.release(0)
    with raises(ProtocolError, "version_not_kept", version=0):
        second.acquire(0)


def test_store_without_compute_continues_at_its_version() -> None:
    """Parameter servers that overwrite report the version that they have read."""
    flat = FlatBuffer.empty(Layout.from_module(model()))
    store, resumed = (NullStore(flat, SGD(1.0)) for _ in range(2))
    store.receive(Facts("a", "w1", 0, 1), None)
    store.step({"a": 1.0})
    store.blend({})
    resumed.load_state(store.state_tensors([0, 1]))
    assert (resumed.version, resumed.acquire(0)) == (2, flat)


@pytest.mark.parametrize(
    ("state", "code", "fields"),
    [
        (
            make_store(momentum=0.9).state_tensors(),
            "other_optimizer",
            {"found": ["0/momentum/0"], "needed": []},
        ),
        (WeightStore(other_model(), SGD(0.1)).state_tensors(), "other_model", {"tensors": "weights"}),
        ({}, "missing_tensors", {"found": []}),
        ({"inbox/nonsense/a/0": torch.zeros(1)}, "unknown_kind", {"kind": "nonsense"}),
        ({"kept/latest/0": torch.zeros(1)}, "unknown_tensors", {"group": "kept/latest"}),
    ],
    ids=["rule", "model", "nothing", "kind", "group"],
)
def test_state_of_another_model_or_optimizer_is_rejected(
    state: dict[str, Tensor], code: str, fields: dict[str, Any]
) -> None:
    if code.startswith("unknown"):
        state = make_store().state_tensors() | state
    with raises(CheckpointError, code, **fields):
        make_store().load_state(state)
