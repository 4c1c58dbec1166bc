"""The files of the page, for the server and for a static copy."""

import json
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oddlot.checkpoint.local_storage import replace_file
from oddlot.core.support.errors import UsageError
from oddlot.demo.model_file import DESCRIPTION, WEIGHTS, ModelFiles, read
from oddlot.report.page_style import PALETTE, state_colors

HERE = Path(__file__).parent
SHIPPED = HERE / "model"
"""Folder of the model that oddlot ships."""
INDEX, STRIP, DATA = "index.html", "strip.json", "data.js"
MODEL_LICENSE = "model_license.txt"
"""License of the shipped model, and the origin of its data."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
"""Content security policy: nothing comes from another host, and no inline script runs."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".bin": "application/octet-stream",
    ".txt": "text/plain; charset=utf-8",
}
"""Media types of the files, by suffix."""
Site = Mapping[str, bytes]
"""Content of the files, by name."""


def site(files: ModelFiles, strip: Mapping[str, Any] | None) -> dict[str, bytes]:
    """Return the files of the page with a model and, if it is known, the strip of its training."""
    pages = {
        path.name: path.read_bytes() for path in sorted((HERE / "page").iterdir()) if path.suffix in TYPES
    }
    tag = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    pages[INDEX] = pages[INDEX].replace(b"<!-- policy -->", tag.encode())
    palette = f"{PALETTE.strip()}\n{state_colors()}\n"
    made = {"palette.css": palette.encode(), DESCRIPTION: files.description, WEIGHTS: files.weights}
    return pages | made | {STRIP: json.dumps(strip).encode()}


def shipped_site() -> dict[str, bytes]:
    """Return the files of the page with the shipped model. Raise CheckpointError if the model is damaged."""
    files = read(SHIPPED)
    pages = site(files, json.loads((SHIPPED / STRIP).read_bytes()))
    return pages | {MODEL_LICENSE: (SHIPPED / "LICENSE.txt").read_bytes()}


def write_copy(pages: Site, folder: Path) -> None:
    """Write a copy of the page that works on any web server and, with `data.js`, also from a disk.

    Raise UsageError if the folder has other files, or if a file cannot be written.
    """
    try:
        if folder.is_dir() and any(folder.iterdir()) and not (folder / DESCRIPTION).is_file():
            message = f"{folder} is not empty, and has no page of oddlot: name another folder"
            raise UsageError(message, "folder_not_empty", path=str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in {**pages, DATA: _as_script(pages)}.items():
            replace_file(folder / name, content)
        if MODEL_LICENSE not in pages:  # of an earlier copy
            (folder / MODEL_LICENSE).unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"cannot write the page to {folder}: {reason}"
        raise UsageError(message, "unwritable_folder", path=str(folder), reason=reason) from error


def _as_script(pages: Site) -> bytes:
    """Return the data of the page as a script, because browsers do not fetch files from a disk."""
    parts = {"description": pages[DESCRIPTION], "strip": pages[STRIP], "weights": b64encode(pages[WEIGHTS])}
    data = {name: json.loads(part) if name != "weights" else part.decode() for name, part in parts.items()}
    return b"globalThis.DIGIT_DATA = " + json.dumps(data).encode() + b";\n"
