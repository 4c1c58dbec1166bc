"""Comparison of the tensors of a checkpoint with those of the job that resumes it."""

from collections.abc import Mapping
from typing import Any

from oddlot.checkpoint.format import Checkpoint
from oddlot.core.errors import CheckpointError
from oddlot.train.flat_buffer import Layout

MAX_NAMED = 3


def check_layout(checkpoint: Checkpoint, saved: Mapping[str, Any], layout: Layout) -> None:
    """Raise CheckpointError if the checkpoint, with the layout `saved`, is of a model with other tensors than `layout`.

    The field `different` has the dtype and shape in the run and now, by tensor name. If `saved` is not a layout,
    another error is raised.
    """
    if checkpoint.job == layout.fingerprint:
        return
    was, now = _described(saved), _described(layout.to_json())
    different = {name: (was.get(name), now.get(name)) for name in {**was, **now}}
    different = {name: pair for name, pair in different.items() if pair[0] != pair[1]}
    lines = [f"\n  {name}: {pair[0]} in the run, {pair[1]} now" for name, pair in different.items()]
    more = f"\n  and {len(lines) - MAX_NAMED} more" if len(lines) > MAX_NAMED else ""
    told = "".join(lines[:MAX_NAMED]) + more or " their order differs"
    path = checkpoint.storage.path(checkpoint.name)
    raise CheckpointError(
        f"checkpoint {path} has other tensors than the job's model:{told}\nResume with the original model, or use "
        "another folder",
        "other_job",
        path=path,
        different=different,
    )


def _described(layout: Mapping[str, Any]) -> dict[str, str]:
    """Return the dtype and shape of each tensor, its role if it is not trainable, and its group if that is not 0."""
    found = {}
    for entry in layout["entries"]:
        section = layout["sections"][entry["section"]]
        role = "" if section["role"] == "trainable" else f"{section['role']} "
        group = f" in group {section['group']}" if section["group"] else ""
        found[str(entry["name"])] = f"{role}{section['dtype']} {list(entry['shape'])}{group}"
    return found
