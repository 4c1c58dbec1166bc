"""Codecs by their names on the command line and in job files, and users' own by their import path."""

from typing import TYPE_CHECKING

from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.core.support.user_code import imported_class, is_import_path, place_of, trace_of
from oddlot.wire.codec import Codec

if TYPE_CHECKING:
    from collections.abc import Callable

CODECS = ("plain", "bf16", "fp16", "nonzero", "nonzero_bf16", "nonzero_fp16")
"""Names that `codec_of` knows."""


def codec_of(name: str) -> Codec:
    """Return a codec of this name, or of the class at an import path such as `mypkg.mymodule:MyCodec`.

    Raise UsageError if the name is unknown, its module cannot be imported, or the class needs arguments.
    """
    if name in CODECS:
        return _makers()[name]()
    if not is_import_path(name):
        unknown = UnknownName("codec", name, CODECS, key="codec")
        raise unknown.with_message(f"{unknown}; or name your own class as package.module:Class")
    made_by: type[Codec] = imported_class(name, Codec, "codec", key="codec")
    try:
        return made_by()
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        reason = trace_of(error)
        message = f"the class {name} cannot be created without arguments:\n{reason}"
        raise UsageError(message, "codec_needs_arguments", "codec", given=name, reason=reason) from None


def codec_name(codec: Codec) -> str:
    """Return the name of a codec for run.json: one that `codec_of` knows, or its import path."""
    names = [name for name, make in _makers().items() if make() == codec]
    return names[0] if names else place_of(type(codec))


def _makers() -> "dict[str, Callable[[], Codec]]":
    """Return the function that makes each codec. This imports PyTorch. `CODECS` has the names only."""
    from oddlot.wire.half import Half
    from oddlot.wire.nonzero_blocks import NonZero
    from oddlot.wire.plain import Plain

    return {
        "plain": Plain,
        "bf16": Half,
        "fp16": lambda: Half("fp16"),
        "nonzero": NonZero,
        "nonzero_bf16": lambda: NonZero(Half()),
        "nonzero_fp16": lambda: NonZero(Half("fp16")),
    }
