"""Untrusted run folders: invalid contents raise a single error, and files outside are not changed."""

import json
import os
import resource
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

import oddlot
from oddlot import Asynchronous, CheckpointError, JobError, UsageError
from oddlot.checkpoint.format import to_json
from oddlot.history.log import read_log
from oddlot.history.replay import replay
from oddlot.history.run_settings import Resume
from oddlot.report.html_page import page
from oddlot.report.run_report import RunReport
from tests.fits import a_job, fleet
from tests.run.test_resume import begun, content
from tests.sealed import reseal, rewrite
from tests.transcripts import raises, warns

NESTED = {f'"nested {depth}"': "[" * depth + "]" * depth for depth in (300, 10_000)}
"""Nested lists by placeholder. Python's JSON parser supports a depth of 300, but not of 10,000."""
VALUES: list[Any] = [
    *(None, True, "a", "-1", "", [], {}, 0, -1, 1, 0.5, -0.5, 10**30, -(10**30), 2**62, 1e308, -1e308),
    *(
        float("nan"),
        float("inf"),
        "x" * 10_000,
        [[]],
        {"is": "Joined"},
        [0, 0, 2**62],
        {"a": 1},
        "nested 300",
        "nested 10000",
    ),
]


def mutate(plain: Any, chance: Random) -> None:
    """Change one random entry: remove it, replace it, or overwrite it with another entry."""
    places = [
        (table, key)
        for table in _tables(plain)
        for key in (table if isinstance(table, dict) else range(len(table)))
    ]
    table, key = chance.choice(places)
    match chance.randrange(8):
        case 0:
            del table[key]
        case 1:
            other, place = chance.choice(places)
            table[key] = deepcopy(other[place])
        case 2 if isinstance(table[key], int):
            table[key] += chance.choice([-1, 1, 2, 1000, 2**40])
        case _:
            table[key] = deepcopy(chance.choice(VALUES))


def nested(text: str) -> str:
    """Replace the placeholders in a JSON text by nested lists."""
    for name, lists in NESTED.items():
        text = text.replace(name, lists)
    return text


def _tables(plain: Any) -> Iterator[Any]:
    """Yield all nonempty dicts and lists."""
    parts = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list) else ()
    if parts:
        yield plain
    for part in parts:
        yield from _tables(part)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a killed run with two machines."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    goes_on(folder, "versions>=12", resume=None)
    (folder / "summary.json").unlink()
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of the killed run."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def goes_on(
    folder: Path, until: str = "versions>=20", resume: Resume | None = "latest", **options: Any
) -> None:
    options = {"checkpoint_every": "1 versions", **options}
    oddlot.fit(a_job(), Asynchronous(), fleet(), until=until, out=folder, resume=resume, **options)


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").iterdir())


# --- a log with checksums ------------------------------------------------------------------------


def test_any_bit_flip_in_the_log_is_detected(run: Path) -> None:
    """The unfinished last line is an exception, because it is ignored in any case."""
    log, chance = run / "records.jsonl", Random(3)
    before = list(read_log(log))
    sound = log.read_bytes()
    content = sound + b'{"is":"Record","now":0.12'
    for place in [len(sound) - 1, *chance.sample(range(len(content)), 200)]:
        flipped = bytes([content[place] ^ 1 << chance.randrange(8)])
        log.write_bytes(content[:place] + flipped + content[place + 1 :])
        if place >= len(sound):
            assert list(read_log(log)) == before
            continue
        with pytest.raises(CheckpointError) as caught:
            list(read_log(log))
        found = caught.value.code, caught.value.fields.get("line")
        line = content[:place].count(b"\n") + 1
        assert found in [("damaged_file", line), *[("other_format", None)] * (line == 1)]


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [*lines[:5], *lines[6:]],
        lambda lines: [*lines[:6], *lines[5:]],
        lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]],
    ],
    ids=["removed", "doubled", "swapped"],
)
def test_removed_doubled_or_swapped_log_lines_are_detected(
    run: Path, change: Callable[[list[str]], list[str]]
) -> None:
    log = run / "records.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    changed = change(lines)
    log.write_text("".join(changed))
    first = next(
        number for number, pair in enumerate(zip(lines, changed, strict=False), 1) if pair[0] != pair[1]
    )
    with raises(CheckpointError, "damaged_file", line=first):
        list(read_log(log))


# --- invalid contents with valid checksums ---------------------------------------------------------


def manifest(place: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a checkpoint, and update its checksum."""
    path = place / "manifest.json"
    plain = json.loads(path.read_text())
    plain.pop("crc32")
    change(plain)
    path.write_bytes(to_json({**plain, "crc32": crc32(to_json(plain))}))


def spoil_log(run: Path, chance: Random) -> None:
    log = run / "records.jsonl"
    rewrite(log, lambda lines: mutate(chance.choice([*lines[:1] * 5, *lines]), chance))
    log.write_text(nested(log.read_text()))
    reseal(log)


def spoil_state(run: Path, chance: Random) -> None:
    path = newest(run) / "conductor.json"
    state = json.loads(path.read_text())
    mutate(state, chance)
    data = nested(to_json(state).decode()).encode()
    path.write_bytes(data)
    sums = {"bytes": len(data), "crc32": crc32(data)}
    manifest(path.parent, lambda plain: plain["files"].update({"conductor.json": sums}))


def read(run: Path) -> None:
    """Read the run like `oddlot report` and `oddlot replay`."""
    with suppress(CheckpointError):
        page([RunReport.read(run)])
    with suppress(CheckpointError):
        replay(run, Asynchronous)


def resume(run: Path) -> None:
    with warnings.catch_warnings(), suppress(CheckpointError):
        warnings.simplefilter("ignore")
        goes_on(run)


@pytest.mark.parametrize(
    ("spoil", "use", "count"), [(spoil_log, read, 80), (spoil_state, resume, 40)], ids=["log", "state"]
)
def test_random_damage_raises_one_error_without_using_memory(
    whole: Path,
    tmp_path: Path,
    spoil: Callable[[Path, Random], None],
    use: Callable[[Path], None],
    count: int,
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(count):
        run = Path(shutil.copytree(whole, tmp_path / str(seed)))
        spoil(run, Random(seed))
        use(run)
        shutil.rmtree(run)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < (200 << (20 if sys.platform == "darwin" else 10)), "macOS counts bytes, Linux kilobytes"


# --- paths that leave the folder -------------------------------------------------------------------


@pytest.fixture
def victim(whole: Path, tmp_path: Path) -> Iterator[Path]:
    """Yield another run with checkpoints of the same job, and assert that it is unchanged afterwards."""
    folder = Path(shutil.copytree(whole, tmp_path / "victim"))
    (folder / "0-7-abcdef.jsonl").write_text("mine")
    before = content(folder)
    yield folder
    assert content(folder) == before


@pytest.mark.parametrize(
    "name",
    ["../../victim", "/absolute", "log/../../victim", "log", "", ".", "log/0-7-abcdef.jsonl/", "log/\0", 7],
)
@pytest.mark.usefixtures("victim")
def test_manifest_with_a_foreign_path_is_damaged(run: Path, name: Any) -> None:
    """Without this check, the file would be removed as a part of the log that newer checkpoints no longer need."""
    place = newest(run)
    manifest(place, lambda plain: plain.update(log=[{"name": name, "bytes": 0, "crc32": 0}]))
    with warns("damaged_checkpoint_skipped", damage="damaged_file", path=str(place)):
        goes_on(run, keep_checkpoints=1)


def test_symlinked_checkpoint_is_skipped_and_only_unlinked(run: Path, victim: Path) -> None:
    place = newest(run)
    shutil.rmtree(place)
    place.symlink_to(newest(victim))
    with warns("damaged_checkpoint_skipped", damage="symbolic_link", path=str(place)):
        goes_on(run, keep_checkpoints=1)
    assert not place.is_symlink()


@pytest.mark.usefixtures("victim")
@pytest.mark.parametrize("how", [{}, {"resume": None, "force": True}], ids=["resume", "force"])
@pytest.mark.parametrize("what", ["setting", "relative setting", "folder of a run", "link"])
def test_checkpoints_of_another_run_are_rejected(
    run: Path, victim: Path, what: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this check, an untrusted folder could remove old checkpoints of another run."""
    monkeypatch.chdir(run)
    if what == "link":
        shutil.rmtree(run / "checkpoints")
        (run / "checkpoints").symlink_to(victim / "checkpoints")
    else:
        places = {"setting": str(victim / "checkpoints"), "relative setting": "../victim/checkpoints"}
        settings = json.loads((run / "run.json").read_text())
        settings |= {"checkpoints": places.get(what, str(victim)), "run_id": "0" * 32}
        (run / "run.json").write_text(json.dumps(settings))
    with raises(UsageError, "not_this_run", path=str(run)):
        goes_on(run, **how)


def test_symlinked_log_folder_is_rejected(run: Path, victim: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    shutil.rmtree(run)
    goes_on(run, "versions>=2", resume=None, checkpoints=place)
    shutil.rmtree(place / "log")
    (place / "log").symlink_to(victim)
    with raises(UsageError, "unusable_folder", path=str(place)):
        goes_on(run, resume=None, force=True, checkpoints=place)


@pytest.mark.parametrize("where", ["run", "place"])
def test_symlinked_lock_is_rejected(tmp_path: Path, where: str) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / where).mkdir()
    (tmp_path / where / "lock").symlink_to(tmp_path / "other")
    with raises(UsageError, "unusable_folder", path=str(tmp_path / where)):
        begun(tmp_path / "run", checkpoints=tmp_path / "place")
    assert (tmp_path / "other").read_text() == "mine"


def test_symlinked_log_is_not_written(run: Path) -> None:
    log, other = run / "records.jsonl", run.parent / "other"
    log.rename(other)
    log.symlink_to(other)
    before = other.read_bytes()
    with raises(JobError, "unwritable_file", path=str(log)):
        goes_on(run)
    assert other.read_bytes() == before


@pytest.mark.parametrize("name", ["run.json", "summary.json", "records.jsonl", "lock", "conductor.json"])
def test_named_pipe_does_not_block(run: Path, name: str) -> None:
    path = newest(run) / name if name == "conductor.json" else run / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for use in (RunReport.read, goes_on):
        with suppress(CheckpointError, UsageError):
            use(run)
