"""Readers of published spot market traces: prices, and numbers of available machines, as step functions of time.

Times are seconds from the start of the trace. An invalid file raises UsageError, with the file, the line and the fault.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from math import inf, isnan, nan
from pathlib import Path

from oddlot.core.support.errors import InvalidValue, UnknownName, UsageError
from oddlot.machines.text_files import read_packed
from oddlot.machines.time_series import Steps

MAX_SECONDS = 1e15
"""Largest interval of a trace."""
CREATED = re.compile(r"Created instance (\S+) with (\d+) GPU\(s\) of type (\S+) in zone (\S+)")
AWS_COLUMNS = ("availability_zone", "instance_type", "timestamp", "spot_price_usd")


def read_alive(path: Path, unit: str = "seconds") -> Steps:
    """Return the number of available machines over time from lines `time,alive`, with or without a header line.

    `unit` is `"seconds"` or `"hours"`. The format of the traces of Bamboo (Thorpe et al., NSDI 2023).
    """
    scale = {"seconds": 1.0, "hours": 3600.0}.get(unit)
    if scale is None:
        raise InvalidValue("unit", unit, "'seconds' or 'hours'")
    return read_packed(path, lambda text: _steps(alive_rows(text.splitlines()), scale))


def alive_rows(lines: Iterable[str]) -> Iterator[tuple[float, float]]:
    """Yield (time, alive) of lines `time,alive` in the order of time."""
    last = -inf
    for number, line in _numbered(lines):
        parts = line.split(",")
        values = [_number(part) for part in parts]
        if number == 1 and len(parts) == 2 and all(map(isnan, values)):
            continue  # header line
        if len(parts) != 2 or not all(0 <= value < inf for value in values):
            message = f"line {number}: expected `time,alive`, two numbers of at least 0, but found {line!r}"
            raise UsageError(message, "invalid_line", line=number, given=line)
        time, alive = values
        if alive != int(alive):
            message = f"line {number}: the number of machines must be a whole number, but is {alive:g}"
            raise UsageError(message, "fractional_count", line=number, given=alive)
        if time < last:
            message = f"line {number}: times of a trace must not decrease, but {time:g} follows {last:g}"
            raise UsageError(message, "times_out_of_order", line=number, given=time)
        last = time
        yield time, alive


def read_aws_prices(path: Path, instance: str, zone: str) -> Steps:
    """Return the spot price of an instance type in an availability zone, from a CSV of AWS's spot price history.

    The columns are availability_zone, instance_type, timestamp (ISO 8601) and spot_price_usd. Rows may be in any order.
    """
    return read_packed(path, lambda text: _aws(text, instance, zone))


def _aws(text: str, instance: str, zone: str) -> Steps:
    table = csv.DictReader(text.splitlines())
    if missing := [name for name in AWS_COLUMNS if name not in (table.fieldnames or ())]:
        message = f"line 1: no column {missing[0]}: a spot price history has {', '.join(AWS_COLUMNS)}"
        raise UsageError(message, "missing_column", line=1, name=missing[0])
    found, known = list[tuple[float, float]](), set[tuple[str, str]]()
    for row in table:
        known.add((row["instance_type"], row["availability_zone"]))
        if (row["instance_type"], row["availability_zone"]) == (instance, zone):
            found.append(
                (_instant(row["timestamp"], table.line_num), _price(row["spot_price_usd"], table.line_num))
            )
    if not found:
        if here := [place for kind, place in known if kind == instance]:
            raise UnknownName(f"zone of {instance}", zone, here, key="zone")
        raise UnknownName("instance", instance, {kind for kind, _ in known}, key="instance")
    return _steps(_from_first(found))


def read_azure_prices(path: Path, size: str) -> Steps:
    """Return the daily spot price of a machine size, from a CSV with the columns Date (month/day/year) and sizes."""
    return read_packed(path, lambda text: _azure(text, size))


def _azure(text: str, size: str) -> Steps:
    table = csv.DictReader(text.splitlines())
    sizes = [name for name in table.fieldnames or () if name != "Date"]
    if "Date" not in (table.fieldnames or ()):
        message = "line 1: no column Date: a table of daily prices has it"
        raise UsageError(message, "missing_column", line=1, name="Date")
    if size not in sizes:
        raise UnknownName("size", size, sizes, key="size")
    found = list[tuple[float, float]]()
    for row in table:
        try:
            day = datetime.strptime(row["Date"], "%m/%d/%Y")  # noqa: DTZ007 - a day, in any time zone
        except (TypeError, ValueError):
            message = f"line {table.line_num}: {row['Date']!r} is not a date such as 2/24/2020"
            raise UsageError(message, "invalid_day", line=table.line_num, given=row["Date"]) from None
        found.append((day.toordinal() * 86400.0, _price((row[size] or "").lstrip("$"), table.line_num)))
    return _steps(_from_first(found))


def read_gcp_probe(path: Path, gpu: str, zone: str, gpus: int = 1) -> Steps:
    """Return the availability of a preemptible GCP instance, from the log of a probe that repeatedly requests one.

    The value is 1 from the creation of an instance until the probe finds it not running, and 0 otherwise. Lines are
    `[ISO time] Created instance NAME with N GPU(s) of type GPU in zone ZONE`, `[...] Instance NAME running in zone ...`
    and `[...] Instance NAME not running in zone ...`, the format of Narayanan et al., "Analysis and Exploitation of
    Dynamic Pricing in the Public Cloud for ML Training" (2020).
    """
    return read_packed(path, lambda text: _gcp(text.splitlines(), (gpu, zone, f"{gpus}")))


def _gcp(lines: Sequence[str], wanted: tuple[str, str, str]) -> Steps:
    up, rows, last, known = "", list[tuple[float, float]](), nan, set[tuple[str, str, str]]()
    for number, line in _numbered(lines):
        if not line.startswith("["):
            continue  # output of the cloud's own tool
        stamp, _, said = line[1:].partition("] ")
        last = _instant(stamp, number)
        rows = rows or [(last, 0.0)]
        if created := CREATED.match(said):
            name, gpus, gpu, zone = created.groups()
            known.add((gpu, zone, gpus))
            if (gpu, zone, gpus) == wanted:
                up = name
                rows.append((last, 1.0))
        elif up and said.startswith(f"Instance {up} not running"):
            up = ""
            rows.append((last, 0.0))
    if not known:
        message = "not the log of a probe: no line has `Created instance NAME with ...`"
        raise UsageError(message, "other_format")
    _check_created(wanted, known)
    return _steps(_from_first([*rows, (last, rows[-1][1])]))


def _check_created(wanted: tuple[str, str, str], known: set[tuple[str, str, str]]) -> None:
    """Raise UsageError if no such instance was created.

    The error names the first of GPU, zone and number of GPUs that is unknown.
    """
    gpu, zone, _ = wanted
    kinds = {"gpu": "gpu", "zone": f"zone of {gpu}", "gpus": f"number of GPUs of {gpu} in {zone}"}
    for side, (key, kind) in enumerate(kinds.items()):
        here = {one[side] for one in known if one[:side] == wanted[:side]}
        if wanted[side] not in here:
            raise UnknownName(kind, wanted[side], here, key=key)


def read_skypilot(path: Path, inverted: bool = False) -> Steps:
    """Return the number of available instances over time from SkyPilot's JSON.

    The format is `{"metadata": {"gap_seconds": 600}, "data": [0, 1, ...]}`. Each number counts the available instances,
    as the README of the traces says (https://github.com/skypilot-org/spot-traces; Wu et al., "Can't Be Late", NSDI
    2024). With `inverted`, 0 is available and 1 is preempted, as in the paper's simulator (`TraceEnv` of
    https://github.com/Michaelvll/skypilot-spot-strategy). Raise UsageError if `inverted` data have numbers above 1.
    """
    return read_packed(path, lambda text: _skypilot(text, inverted))


def _skypilot(text: str, inverted: bool) -> Steps:
    try:
        trace = json.loads(text)
        gap, data = trace["metadata"]["gap_seconds"], trace["data"]
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not valid JSON: {error}", "invalid_json", reason=str(error)) from None
    except (TypeError, LookupError):
        message = 'expected {"metadata": {"gap_seconds": ...}, "data": [...]}'
        raise UsageError(message, "other_format") from None
    if not _is_count(gap) or not 0 < gap < MAX_SECONDS:
        raise InvalidValue("gap_seconds", gap, f"a number above 0 and below {MAX_SECONDS:g}")
    if not isinstance(data, list) or not data or not all(_is_count(v) and v == int(v) for v in data):
        raise InvalidValue("data", data, "a list of whole numbers")
    if inverted and (most := max(data)) > 1:
        message = (
            f"inverted = true reads 1 as preempted, but the data have numbers up to {most:g}: leave it out"
        )
        raise UsageError(message, "inverted_counts", "inverted", most=most)
    counts = [1 - value for value in data] if inverted else data
    return Steps.of([(place * float(gap), float(value)) for place, value in enumerate([*counts, counts[-1]])])


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf


# --- helpers -----------------------------------------------------------------------------------


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan


def _price(text: str | None, line: int) -> float:
    price = _number(text or "")
    if not 0 <= price < inf:
        raise UsageError(
            f"line {line}: {text!r} is not a price in dollars", "invalid_price", line=line, given=text
        )
    return price


def _instant(text: str | None, line: int) -> float:
    try:
        found = datetime.fromisoformat(text or "")
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        message = f"line {line}: {text!r} is not a time such as 2020-03-01T10:11:21Z"
        raise UsageError(message, "invalid_time", line=line, given=text) from None


def _from_first(rows: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the rows in the order of time, shifted to start at second 0."""
    rows = sorted(rows, key=lambda row: row[0])
    return [(time - rows[0][0], value) for time, value in rows]


def _steps(rows: Iterable[tuple[float, float]], scale: float = 1.0) -> Steps:
    found = [(time * scale, value) for time, value in rows]
    if not found:
        raise UsageError("the file is empty", "empty_file")
    return Steps.of(found)
