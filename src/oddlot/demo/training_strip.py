"""The strip below the page: which worker computed which part of a training, and which parts were lost."""

from collections.abc import Iterator, Sequence
from typing import Any

from oddlot.core.commands import Start
from oddlot.core.events import Resumed
from oddlot.core.records import Record
from oddlot.core.sample_spans import Span
from oddlot.core.tasks import Task, TaskId, machine_of
from oddlot.history.segments import STAGE, Segment
from oddlot.history.worker_timeline import TaskRun, WorkerTimeline
from oddlot.report.timeline import machine_order

COLUMNS = 120
"""Equal intervals of time in the strip."""
MAX_LANES = 16
"""Largest number of machines. Those with the most samples are shown."""
MAX_LOST = 20
"""Largest number of lost tasks that the strip describes."""


def training_strip(records: Sequence[Record], title: str, segments: Sequence[Segment] = ()) -> dict[str, Any]:
    """Return the strip of a log without lost work, and of the segments of its run, as a JSON object.

    `lanes` has for each machine the merged and the lost samples of each of `COLUMNS` intervals, and the ends of its
    workers. `lost` describes the lost tasks, each with the workers that computed its samples again. `stages` has the
    names and the start times of the run's stages.
    """
    timeline, tasks = WorkerTimeline(keep=True), dict[TaskId, Task]()
    for record in records:
        timeline(record)
        tasks |= {action.task.id: action.task for action in record.actions if isinstance(action, Start)}
    timeline.finish()
    seconds = max((record.now for record in records), default=0.0)
    runs = [run for worker in timeline.lives for run in worker.answered]
    lanes = _lanes(timeline, seconds)
    shown = sorted(lanes, key=lambda lane: -lane["samples"])[:MAX_LANES]
    lost = sorted((run for run in runs if run.unused), key=lambda run: run.ended)
    merged = {run.id for run in runs if run.outcome == "merged"}
    return {
        "title": title,
        "seconds": round(seconds, 2),
        "merged_samples": timeline.samples.merged,
        "lost_samples": sum(run.samples for run in lost),
        "lost_tasks": len(lost),
        "machines": len(lanes),
        "stages": list(_stages(records, segments)),
        "lanes": sorted(shown, key=lambda lane: machine_order(lane["machine"])),
        "lost": [_lost(run, tasks, merged) for run in lost[:MAX_LOST]],
    }


def _stages(records: Sequence[Record], segments: Sequence[Segment]) -> Iterator[dict[str, Any]]:
    """Yield the stages that have started: run.json may list one more if the run was killed between two stages."""
    switches = (
        record.now
        for record in records
        if isinstance(record.event, Resumed) and record.event.segment is not None
    )
    for segment, start in zip(segments, [0.0, *switches], strict=False):
        if STAGE in segment:
            yield {"name": segment[STAGE], "seconds": round(start, 2)}


def _lanes(timeline: WorkerTimeline, seconds: float) -> list[dict[str, Any]]:
    """Return a lane for each machine, with the tasks of all of its workers."""
    lanes: dict[str, dict[str, Any]] = {}
    for worker in timeline.lives:
        empty = {"samples": 0, "merged": [0.0] * COLUMNS, "lost": [0.0] * COLUMNS, "ends": []}
        lane = lanes.setdefault(machine_of(worker.node), {"machine": machine_of(worker.node), **empty})
        lane["samples"] += worker.samples
        if worker.ended_as and worker.ended is not None:
            lane["ends"].append(
                {"worker": worker.node, "seconds": round(worker.ended, 2), "as": worker.ended_as}
            )
        for run in worker.answered:
            row = lane["lost" if run.unused else "merged"]
            for column, share in _columns(run, seconds):
                row[column] += share * run.samples
    for lane in lanes.values():
        lane |= {row: [round(samples) for samples in lane[row]] for row in ("merged", "lost")}
    return list(lanes.values())


def _columns(run: TaskRun, seconds: float) -> Iterator[tuple[int, float]]:
    """Yield the columns that a task covers, each with its share of the task."""
    width = seconds / COLUMNS or 1.0
    first, last = (min(COLUMNS - 1, int(now / width)) for now in (run.begun, run.ended))
    for column in range(first, last + 1):
        begin, end = max(run.begun, column * width), min(run.ended, (column + 1) * width)
        yield column, (end - begin) / (run.ended - run.begun) if first < last else 1.0


def _lost(run: TaskRun, tasks: dict[TaskId, Task], merged: set[TaskId]) -> dict[str, Any]:
    """Return the description of a lost task. `again` are the workers that computed some of its samples again."""
    spans = tasks[run.id].spans
    others = (task for name, task in tasks.items() if name in merged and _overlap(task.spans, spans))
    again = dict.fromkeys(task.node for task in others)
    return {
        "worker": run.node,
        "seconds": round(run.ended, 2),
        "samples": run.samples,
        "reason": run.outcome,
        "epoch": spans[0].epoch if spans else 0,
        "again": list(again),
    }


def _overlap(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(
        one.epoch == other.epoch and one.start < other.stop and other.start < one.stop
        for one in some
        for other in others
    )
