"""Codecs by name, and user-defined codecs by import path."""

import subprocess
import sys

import pytest

from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.wire.codec import Codec
from oddlot.wire.half import Half
from oddlot.wire.nonzero_blocks import NonZero
from oddlot.wire.plain import Plain
from oddlot.wire.registry import CODECS, codec_name, codec_of
from tests.transcripts import raises

BY_NAME = {
    "plain": Plain(),
    "bf16": Half("bf16"),
    "fp16": Half("fp16"),
    "nonzero": NonZero(),
    "nonzero_bf16": NonZero(Half("bf16")),
    "nonzero_fp16": NonZero(Half("fp16")),
}
PROBE = """\
import sys
import oddlot.wire.registry
print(*sorted({"torch", "numpy"} & set(sys.modules)))
"""


class Mine(Plain):
    """A user-defined codec without changes."""


class Scaled(Plain):
    """A codec with a required argument."""

    def __init__(self, factor: float) -> None:
        raise NotImplementedError(factor)


class Unfinished(Codec):
    """A codec without `encode` and `decode`."""


def test_codec_of_returns_each_codec() -> None:
    assert {name: codec_of(name) for name in CODECS} == BY_NAME


def test_import_path_names_a_custom_codec() -> None:
    assert isinstance(codec_of(f"{__name__}:Mine"), Mine)


def test_unknown_codec_is_rejected() -> None:
    with raises(UnknownName, "unknown_name", kind="codec", given="fp8", nearest="fp16") as caught:
        codec_of("fp8")
    assert caught.value.key == "codec"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (f"{__name__}:Scaled", "codec_needs_arguments"),
        (f"{__name__}:Unfinished", "codec_needs_arguments"),
        (f"{__name__}:BY_NAME", "not_a_codec"),
        ("oddlot.strategies:Synchronous", "not_a_codec"),
        ("no.such.module:Mine", "codec_not_importable"),
    ],
)
def test_invalid_codec_class_is_rejected(given: str, code: str) -> None:
    with raises(UsageError, code, given=given) as caught:
        codec_of(given)
    assert caught.value.key == "codec"


def test_codec_names_import_no_pytorch() -> None:
    """The command line lists codec names without an import of PyTorch."""
    found = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_codec_name_inverts_codec_of() -> None:
    assert [codec_name(codec_of(name)) for name in CODECS] == [*CODECS]
    assert codec_name(Mine()) == f"{Mine.__module__}:Mine"
