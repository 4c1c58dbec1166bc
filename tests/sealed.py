"""Helpers that change logs and restore their checksums, as an attacker who knows the format can."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oddlot.history.log import Chain


def reseal(log: Path) -> None:
    """Compute the checksum of each line of a log."""
    chain, lines = Chain(), [line.partition(',"crc":"') for line in log.read_text().splitlines()]
    log.write_bytes(b"".join(chain.seal(text + "}" if crc else text) for text, crc, _ in lines))


def rewrite(log: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the parsed lines of a log, and restore its checksums. The first line is the header."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    change(lines)
    log.write_text("".join(json.dumps({**line, "crc": ""}, separators=(",", ":")) + "\n" for line in lines))
    reseal(log)
