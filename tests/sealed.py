"""Logs that were changed, with sound checksums again: as one who knows the format makes them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oddlot.history.log import Chain


def reseal(log: Path) -> None:
    """Give every line of a log its right checksum, and each that has none yet."""
    chain, lines = Chain(), [line.partition(',"crc":"') for line in log.read_text().splitlines()]
    log.write_bytes(b"".join(chain.seal(text + "}" if crc else text) for text, crc, _ in lines))


def rewrite(log: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the log's lines, the first of which is its header."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    change(lines)
    log.write_text("".join(json.dumps({**line, "crc": ""}, separators=(",", ":")) + "\n" for line in lines))
    reseal(log)
