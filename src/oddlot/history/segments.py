"""The segments of a run in run.json. Each has its own strategy, optimizer and batch size, or is a stage of the run.

A segment starts at a checkpoint, when a run is resumed with other settings. run.json lists the segments; in the log, a
`Resumed` event with `segment` starts each of them, except the first one.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from oddlot.core.events import Resumed
from oddlot.core.records import Record

SEGMENTS, STAGE = "segments", "stage"
SEGMENT_OPTIONS = (
    STAGE,
    "lr_schedule",
    "lr_scheduler",
    "lr_scheduler_every",
    "lr_scheduler_metric",
    "max_grad_norm",
    "unfreeze_at",
    "ema_decay",
    "precision",
    "keep_optimizer",
    "micro_batch_size",
)
"""Settings of a job that are in run.json if they are not the default, and that may change in a new segment."""
RUN_OPTIONS = ("sampler", "batch_sampler", "drop_last")
"""Settings of a job that are in run.json if they are not the default, and that may not change."""
SEGMENT_SETTINGS = ("strategy", "optimizer", "batch_size", "combine", *SEGMENT_OPTIONS)
"""Keys of run.json that may change in a new segment."""
FIRST_VERSION = "first_version"
"""Version that a segment starts from."""
HUB_OPTIMIZER = "hub_optimizer"
"""Kind of the optimizer at the hub, and of the updates that it steps along."""
STATE_KEPT = "optimizer_state_kept"
"""Whether a segment continues with the state of the hub's optimizer. The first segment does not have this key."""
Segment = dict[str, Any]
"""A segment in run.json: some of `SEGMENT_SETTINGS`, and the keys above."""


def settings_of(settings: Mapping[str, Any]) -> Segment:
    """Return the settings of a run or a segment that may change in a new segment."""
    return {key: settings[key] for key in SEGMENT_SETTINGS if settings.get(key) is not None}


def segments_of(settings: Mapping[str, Any]) -> list[Segment]:
    """Return the segments in run.json, one if it does not list them. Raise one of `DAMAGED` if they are invalid."""
    given = settings.get(SEGMENTS)
    if given is None:
        return [{FIRST_VERSION: 0, **settings_of(settings)}]
    segments = [dict(one) for one in given]
    if not segments or not all(type(one[FIRST_VERSION]) is int for one in segments):
        raise ValueError("no segment, or a segment without its first version")
    return segments


def started_segments(records: Iterable[Record], until: int) -> int:
    """Return the number of new segments among the first `until` records of a log, without lost work."""
    starts = list[int]()
    for number, record in enumerate(islice(records, until)):
        if isinstance(event := record.event, Resumed):
            starts = [start for start in starts if start < event.after_record]
            starts += [number] if event.segment is not None else []
    return len(starts)
