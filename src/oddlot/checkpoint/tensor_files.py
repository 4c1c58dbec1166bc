"""Safetensors files with metadata, written piece by piece without a copy of the tensors."""

import json
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from itertools import chain
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from oddlot.checkpoint.storage import PIECE_BYTES

MAX_HEADER_BYTES = 100_000_000
"""Largest header of a safetensors file that its library reads."""
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.complex64: "C64",
}  # fmt: skip


def tensor_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterable[bytes | memoryview]:
    """Yield a safetensors file piece by piece. Tensors that share memory are written once per name."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return chain([len(text).to_bytes(8, "little") + text], _data(tensors.values()))


def read_metadata(file: IO[bytes]) -> dict[str, str]:
    """Return the metadata of a safetensors file. Raise one of `DAMAGED` if the header is invalid."""
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length:,} bytes")
    return dict(json.loads(file.read(length)).get("__metadata__", {}))


def parse_tensors(data: bytes) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a safetensors file. Raise one of `DAMAGED` if it is invalid."""
    try:
        return read_metadata(BytesIO(data)), load(data)
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _data(tensors: Iterable[Tensor]) -> Iterator[memoryview]:
    for tensor in tensors:
        data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]
