"""The memory layout of modules: any module becomes one block, and a bound module is a view of it."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from oddlot.core.support.errors import UsageError
from oddlot.model.flat_buffer import FlatBuffer, Layout
from tests.transcripts import raises


class Odd(nn.Module):
    """A module with BatchNorm, tied and frozen weights, an embedding, a 0-d parameter, and many dtypes and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 5)
        self.norm = nn.BatchNorm1d(5)
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(requires_grad=False)
        self.out = nn.Linear(5, 7, bias=False)
        self.out.weight = self.words.weight
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.low = nn.Parameter(torch.randn(3, 3, dtype=torch.bfloat16))
        self.high = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("phase", torch.tensor([1j]))
        self.register_buffer("passing", torch.zeros(3), persistent=False)
        self.register_buffer("again", self.norm.running_mean)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.frozen(self.norm(self.words(x)))) * self.scale


def same_state(a: nn.Module, b: nn.Module) -> bool:
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


def test_layout_holds_each_trainable_parameter_and_buffer_once() -> None:
    layout = Layout.from_module(Odd())
    assert list(layout.places) == [
        "scale",
        "words.weight",
        "norm.weight",
        "norm.bias",
        "low",
        "high",
        "mask",
        "again",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    assert [(s.role, s.dtype) for s in layout.sections] == [
        ("trainable", "float32"),
        ("trainable", "bfloat16"),
        ("trainable", "float64"),
        ("buffer", "bool"),
        ("buffer", "float32"),
        ("counter", "int64"),
        ("without_gradient", "uint8"),
    ]
    assert layout.places["scale"].shape == ()
    constants = {"frozen.weight", "frozen.bias", "passing", "phase"}
    assert layout.constants(Odd()).keys() == constants, "what the block does not hold"


def test_parameter_groups_have_their_own_sections() -> None:
    """Parameters and buffers keep their values. Another grouping gives another layout."""
    torch.manual_seed(0)
    model, other = Odd(), Odd()
    layout = Layout.from_module(model, group_of=lambda name: 7 if name in {"norm.bias", "low"} else 0)
    assert [(s.role, s.dtype, s.group) for s in layout.sections] == [
        ("trainable", "float32", 0),
        ("trainable", "bfloat16", 7),
        ("trainable", "float64", 0),
        ("trainable", "float32", 7),
        ("buffer", "bool", 0),
        ("buffer", "float32", 0),
        ("counter", "int64", 0),
        ("without_gradient", "uint8", 0),
    ]
    assert {e.name for e in layout.entries if layout.sections[e.section].group == 7} == {"norm.bias", "low"}
    assert len(layout.trainable_entries) == len(Layout.from_module(model).trainable_entries)
    assert layout.fingerprint != Layout.from_module(model).fingerprint
    other.frozen.load_state_dict(model.frozen.state_dict())
    flat = FlatBuffer.empty(layout)
    flat.gather(model)
    layout.bind(other, flat)
    assert same_state(model, other)


def test_entries_are_aligned_and_equal_layouts_share_a_fingerprint() -> None:
    layout, again = Layout.from_module(Odd()), Layout.from_module(Odd())
    flat = FlatBuffer.empty(layout)
    assert [view.data_ptr() % 64 for _, view in flat.views()] == [0] * len(layout.entries)
    assert layout.bytes == flat.memory.numel()
    assert layout.bytes % 64 == 0
    assert again == layout
    assert again.fingerprint == layout.fingerprint
    assert again.fingerprint != Layout.from_module(nn.Linear(2, 2)).fingerprint
    assert json.loads(json.dumps(layout.to_json()))["entries"][0]["name"] == layout.entries[0].name
    with raises(UsageError, "wrong_block", bytes=layout.bytes, dtype=torch.uint8, shape=(64,)):
        FlatBuffer(layout, torch.zeros(64, dtype=torch.uint8))


def test_gather_and_scatter_copy_a_model() -> None:
    torch.manual_seed(0)
    one, other = Odd(), Odd()
    other.frozen.load_state_dict(one.frozen.state_dict())
    one.get_buffer("norm.num_batches_tracked").add_(3)
    flat = FlatBuffer.empty(Layout.from_module(one))
    flat.gather(one)
    assert not same_state(one, other)
    flat.scatter(other)
    assert same_state(one, other)


def test_bound_model_shares_the_block_memory() -> None:
    model = Odd().train()
    layout = Layout.from_module(model)
    flat = FlatBuffer.empty(layout)
    flat.gather(model)
    layout.bind(model, flat)
    before = flat.memory.clone()
    model(torch.arange(7)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert torch.equal(flat.view("words.weight"), model.out.weight)
    assert model.words.weight.data_ptr() == flat.view("words.weight").data_ptr()
    assert flat.view("norm.num_batches_tracked").item() == 1
    places = {model.get_buffer(name).data_ptr() for name in ("again", "norm.running_mean")}
    assert places == {flat.view("again").data_ptr()}
    assert not torch.equal(before, flat.memory)
    again = FlatBuffer.empty(layout)
    again.gather(model)
    assert torch.equal(again.memory, flat.memory)


def test_update_has_differences_values_and_counter_increments() -> None:
    model = Odd()
    start, end, out = (FlatBuffer.empty(Layout.from_module(model)) for _ in range(3))
    start.gather(model)
    end.copy_(start)
    end.view("scale").add_(1)
    end.view("norm.running_var").fill_(5)
    end.view("norm.num_batches_tracked").add_(4)
    start.view("norm.num_batches_tracked").add_(1)
    out.subtract_trainable_(start, end)
    out.write_buffers_(start, end)
    assert out.view("scale").item() == -1
    assert out.view("norm.running_var").tolist() == [5] * 5
    assert out.view("norm.num_batches_tracked").item() == 3
    out.copy_trainable_(end)
    assert torch.equal(out.view("scale"), end.view("scale"))


def with_buffers(**buffers: torch.Tensor) -> nn.Module:
    model = nn.Linear(2, 2)
    for name, buffer in buffers.items():
        model.register_buffer(name, buffer, persistent=name != "unsaved")
    return model


LINE = torch.arange(10.0)
FLOAT8 = torch.zeros(4, dtype=torch.float8_e4m3fn)
REFUSED: list[tuple[str, nn.Module, dict[str, Any]]] = [
    ("nothing_to_train", nn.Sequential(), {"model": "Sequential"}),
    ("nothing_to_train", nn.Linear(2, 2).requires_grad_(requires_grad=False), {"model": "Linear"}),
    ("nothing_to_train", nn.ParameterList([torch.zeros(0)]), {"model": "ParameterList"}),
    ("complex_parameter", nn.Linear(2, 2, dtype=torch.complex64), {"parameter": "weight"}),
    ("lazy_parameter", nn.Sequential(nn.LazyLinear(3)), {"parameter": "0.weight"}),
    ("meta_tensor", nn.Linear(2, 2, device="meta"), {"parameter": "weight"}),
    ("not_dense", with_buffers(edges=torch.eye(3).to_sparse()), {"buffer": "edges", "layout": "sparse_coo"}),
    ("unsupported_dtype", with_buffers(scale=FLOAT8), {"buffer": "scale", "dtype": torch.float8_e4m3fn}),
    ("overlapping_tensor", with_buffers(ids=LINE[:, None].expand(10, 4)), {"buffer": "ids"}),
    ("overlapping_tensor", with_buffers(windows=LINE.unfold(0, 3, 1)), {"buffer": "windows"}),
    ("shared_memory", with_buffers(a=LINE[:6], b=LINE[4:]), {"buffer": "b", "other": "a"}),
]


@pytest.mark.parametrize(
    ("code", "model", "fields"), REFUSED, ids=[f"{code} {at}" for at, (code, *_) in enumerate(REFUSED)]
)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_unsupported_model_is_rejected(code: str, model: nn.Module, fields: dict[str, Any]) -> None:
    with raises(UsageError, code, **fields):
        Layout.from_module(model)


def test_tensors_side_by_side_in_one_storage_are_accepted() -> None:
    """Columns of one matrix, ids expanded along an axis of size 1, and a tensor with two names are accepted."""
    table = torch.arange(24.0).view(4, 6)
    ids = torch.arange(10).expand(1, 10)
    Layout.from_module(with_buffers(left=table[:, :3], right=table[:, 3:], ids=ids, unsaved=LINE, again=LINE))


@pytest.mark.parametrize(
    "buffer", [torch.eye(3).to_sparse(), FLOAT8, LINE.expand(4, 10), torch.ones(2, dtype=torch.complex128)]
)
def test_unsaved_buffer_of_any_kind_is_accepted(
    buffer: torch.Tensor,
) -> None:
    layout = Layout.from_module(model := with_buffers(unsaved=buffer))
    assert "unsaved" not in layout.constants(model)


def test_equal_infinities_are_kept_by_pull() -> None:
    """Infinities of a causal mask are kept. The initial infinity of an observer is excluded from means."""
    mask = torch.full((4, 4), -torch.inf).triu(1)
    layout = Layout.from_module(with_buffers(mask=mask, range=torch.zeros(2), count=torch.zeros(())))
    here, home = FlatBuffer.empty(layout), FlatBuffer.empty(layout)
    for flat, weight in ((here, 1.0), (home, 3.0)):
        flat.view("mask").copy_(torch.full((4, 4), -torch.inf).triu(1))
        flat.view("weight").fill_(weight)
        flat.view("count").fill_(weight)
    here.view("range").copy_(torch.tensor([torch.inf, 0.5]))
    home.view("range").copy_(torch.tensor([0.25, torch.inf]))
    here.pull_(home, 0.25)
    assert torch.equal(here.view("mask"), home.view("mask"))
    assert set(here.view("weight").flatten().tolist()) == {2.5}
    assert here.view("range").tolist() == [0.25, 0.5]
    assert here.view("count") == 1, "a whole number does not change"


def test_buffer_patterns_add_frozen_and_unsaved_tensors() -> None:
    layout = Layout.from_module(Odd(), ["frozen.*", "passing"])
    assert {"frozen.weight", "frozen.bias", "passing"} < layout.places.keys()
    assert layout.constants(Odd()).keys() == {"phase"}
    model, flat = Odd(), FlatBuffer.empty(layout)
    flat.view("passing").fill_(0.5)
    flat.scatter(model)
    assert model.get_buffer("passing").tolist() == [0.5] * 3
    with raises(
        UsageError, "no_such_parameter", given="words.*", names=["frozen.weight", "frozen.bias", "passing"]
    ):
        Layout.from_module(Odd(), ["words.*"])


def test_subtract_accepts_a_model_on_another_device() -> None:
    """The block of the update is in CPU memory, and the model is on a fake GPU."""
    layout = Layout.from_module(nn.Linear(3, 2))
    with FakeTensorMode():
        out, start = FlatBuffer.empty(layout), FlatBuffer.empty(layout)
        end: Any = SimpleNamespace(section=lambda index: torch.empty_like(out.section(index), device="cuda"))
        out.subtract_trainable_(start, end)
        out.write_buffers_(start, end)
        out.copy_trainable_(end)
        assert out.memory.device.type == "cpu"
