"""Replay of a run's log with a new conductor, to verify that it makes the same decisions."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from oddlot.core.conductor import Conductor
from oddlot.core.conductor_checks import read_conductor
from oddlot.core.events import Resumed
from oddlot.core.optimizers import Optimizer
from oddlot.core.records import Record
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import (
    BadSamples,
    CheckpointError,
    InvalidValue,
    OddlotError,
    ProtocolError,
    UsageError,
)
from oddlot.core.support.serialization import DAMAGED, known_subclass
from oddlot.core.support.user_code import place_of, user_module
from oddlot.history.log import numbered, read_header, read_log
from oddlot.history.peer_logs import check_logs
from oddlot.history.run_folder import PEERS, RunFolder
from oddlot.history.run_outcome import check_whole, read_ending

HISTORY = 8
"""Number of records that are shown before a difference."""


@dataclass(frozen=True)
class Difference:
    """The first record with different decisions."""

    line: int
    """Line of the log."""
    record: Record
    """The record in the log."""
    now: Record | OddlotError
    """The new record, or the error."""
    history: tuple[Record, ...]
    """The records before it."""

    def __str__(self) -> str:
        message = "".join(
            f"  {record.now:.3f} s  {record.event} -> {_text(record)}\n" for record in self.history
        )
        return (
            f"line {self.line} of the log differs. Latest records:\n{message}"
            f"  {self.record.now:.3f} s  {self.record.event}\n"
            f"    the log:  {_text(self.record)}\n"
            f"    now:      {_text(self.now)}"
        )


@dataclass(frozen=True)
class Replay:
    """The result of a replay."""

    records: int
    """Number of reproduced records, without the lost work of resumes."""
    conductor: Conductor
    """The conductor after them."""
    difference: Difference | None = None
    """The first difference. None if every decision was reproduced."""
    logged: int = 0
    """Number of records in the log, including the lost work of resumes."""


def replay(
    folder: str | PathLike[str], strategy: type[Strategy] | None = None, *, import_strategy: bool = False
) -> Replay:
    """Replay the logs of the run in `folder` with new conductors, until a decision differs.

    Pass the class of your own `strategy`, or `import_strategy=True` to import it from the module in the log. An import
    runs that module's code. In a run with several segments, `strategy` stands for the segments that name this class.

    Returns:
        A `Replay`. Its `difference` is None if every decision was reproduced. On a mesh, its conductor is the last
        peer's conductor.

    Raises:
        CheckpointError: The log cannot be read or is not complete.
        UsageError: The strategy cannot be imported, or is not part of oddlot and was not passed.
    """
    if not isinstance(folder, str | PathLike):
        raise InvalidValue("folder", folder, "a run's folder")
    run = RunFolder(folder)
    run.settings()  # raises CheckpointError if there is no run
    logs = run.logs()
    if not logs:
        path = str(run.path / PEERS)
        message = f"{path} has no log with a complete line: there is nothing to replay. Restore the logs from a copy"
        raise CheckpointError(message, "missing_file", path=path)
    check_logs(run, logs)
    results = {host: _replay_log(path, strategy, import_strategy) for host, path in logs.items()}
    check_whole(run, read_ending(run), {host: one.logged for host, one in results.items()})
    *_, last = results.values()
    different = next((one for one in results.values() if one.difference is not None), last)
    return replace(different, records=sum(one.records for one in results.values()))


def _replay_log(path: Path, strategy: type[Strategy] | None, import_strategy: bool) -> Replay:
    header = read_header(path)
    log = list(read_log(path))
    segments = [
        record.event.segment
        for _, record in numbered(log)
        if isinstance(record.event, Resumed) and record.event.segment is not None
    ]
    first = header["conductor"].get("strategy")
    if segments and strategy is not None and place_of(strategy) not in _classes(first)[:1]:
        strategy = None
    kind = _import_strategies(first, strategy, import_strategy)
    for segment in segments:
        _import_strategies(segment.strategy, None, import_strategy)
    try:
        conductor = read_conductor(header["conductor"], kind)
    except (*DAMAGED, UsageError) as error:
        name = getattr(kind, "__name__", repr(kind))
        fields = {"path": str(path), "line": 1, "strategy": name, "reason": repr(error)}
        message = f"{path}:1 has no valid state for the strategy {name}: {error!r}"
        raise CheckpointError(message, "other_strategy", **fields) from None
    try:
        return replace(compare(conductor, numbered(log)), logged=len(log))
    except DAMAGED as error:
        message = f"{path} cannot be replayed: the strategy failed: {error!r}"
        raise CheckpointError(message, "not_replayable", path=str(path), reason=repr(error)) from error


def compare(conductor: Conductor, records: Iterable[tuple[int, Record]]) -> Replay:
    """Let the conductor handle each event again, until a decision differs."""
    history: deque[Record] = deque(maxlen=HISTORY)
    count = 0
    for number, record in records:
        again = _decide(conductor, record)
        if again != record:
            return Replay(count, conductor, Difference(number + 2, record, again, tuple(history)))
        history.append(record)
        count += 1
    return Replay(count, conductor)


def _import_strategies(plain: Any, given: type[Strategy] | None, import_strategy: bool) -> type[Strategy]:
    """Import the classes of a saved strategy and of the strategies inside it. Return the class of the outer
    strategy."""
    outer, *inner = _classes(plain) or [""]
    kind = given or find_strategy(outer, import_strategy)
    for name in inner:
        if ":" in name:
            _find(name, (Strategy, Optimizer), import_strategy)
    return kind


def _classes(plain: Any) -> list[str]:
    """Return the names of the classes in a saved strategy, the outer class first."""
    if isinstance(plain, dict):
        own = [str(plain["is"])] if "is" in plain else []
        return own + [name for part in plain.values() for name in _classes(part)]
    return [name for part in plain for name in _classes(part)] if isinstance(plain, list) else []


def find_strategy(place: str, import_strategy: bool = False) -> type[Strategy]:
    """Return the class at `package.module:Class`.

    Raise UsageError if it does not exist, or if it must not be imported.
    """
    kind: type[Strategy] = _find(place, (Strategy,), import_strategy)
    return kind


def _find(place: str, bases: tuple[type, ...], import_strategy: bool) -> type[Any]:
    """Return the class at `package.module:Class`, a subclass of one of `bases`.

    Raise UsageError like `find_strategy`.
    """
    if known := next(filter(None, (known_subclass(base, place) for base in bases)), None):
        return known
    module, _, name = place.partition(":")
    try:
        if module == "__main__":
            raise ImportError("it was defined in a script or a notebook")
        if module and module.partition(".")[0] != "oddlot" and not import_strategy:
            message = f"the run's strategy {place!r} is not part of oddlot, and importing it runs its code. "
            message += "If you trust it, pass --import, or call oddlot.replay(folder, TheStrategy)"
            raise UsageError(message, "import_not_allowed", strategy=place)
        found: Any = user_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if not isinstance(found, type) or not issubclass(found, bases):
            raise ImportError("it is not a strategy")
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(
            f"the run's strategy {place!r} cannot be imported ({error}): call oddlot.replay(folder, TheStrategy) "
            "with its class",
            "strategy_not_importable",
            strategy=place,
            reason=str(error),
        ) from None
    kind: type[Any] = found
    return kind


def _decide(conductor: Conductor, record: Record) -> Record | OddlotError:
    try:
        return conductor.handle(record.event, record.now)
    except (ProtocolError, BadSamples) as error:
        return error


def _text(record: Record | OddlotError) -> str:
    if isinstance(record, OddlotError):
        return f"{type(record).__name__}: {record}"
    actions = ", ".join(map(str, record.actions)) or "nothing"
    return f"{actions} ({record.remark})" if record.remark else actions
