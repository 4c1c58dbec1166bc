"""Tests of the cache of decoded data: it is complete or unused after kills, full disks and changed files."""

import errno
import io
import os
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from oddlot.core.support.errors import UsageError
from oddlot.workloads.formats.decoded_cache import SPLITS, Splits, cache_folder, cached
from tests.processes import program, says
from tests.transcripts import mask, raises, transcribe, warns

STATE = {"state": "(?<=/few-)[0-9a-f]{20}"}
PROGRAM = """\
import logging, os, sys
from pathlib import Path
from oddlot.workloads.formats.decoded_cache import cached
from tests.workloads.formats.test_decoded_cache import some
logging.basicConfig(level=logging.INFO, format="message: %(message)s", stream=sys.stdout)
sys.stdout.reconfigure(line_buffering=True)
synced = os.fsync

def wait(*arguments):
    print("stopped in", *arguments)
    sys.stdin.readline()

def make():
    print("make")
    if "make" in sys.argv:
        wait("make")
    return some(1)

def sync(descriptor):
    synced(descriptor)
    left = [path.name for path in Path(os.environ["ODDLOT_CACHE"]).rglob("*.partial")]
    if set(left) & set(sys.argv):
        wait(*left)

os.fsync = sync
print("sum", cached("few", [Path(sys.argv[1])], make)["train"][0].sum())
"""


def some(value: int) -> Splits:
    """Return splits with this value in all pixels and labels."""
    return {
        split: (np.full((10, 3, 32, 32), value, np.uint8), np.full(10, value)) for split in ("train", "test")
    }


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ODDLOT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "source"
    path.write_bytes(b"one")
    return path


def never() -> Splits:
    raise AssertionError("the cache is there")


def folder_of(source: Path) -> Path:
    (folder,) = (source.parent / "cache").iterdir()
    return folder


def files_of(source: Path) -> list[str]:
    return sorted(path.name for path in folder_of(source).iterdir())


def is_made_anew(source: Path) -> bool:
    return bool(cached("few", [source], lambda: some(2))["train"][0][0, 0, 0, 0] == 2)


def test_cache_is_written_once_and_mapped_afterwards(source: Path) -> None:
    for make in (lambda: some(1), never):
        splits = cached("few", [source], make)
        for split in SPLITS:
            for at in (0, 1):
                array = splits[split][at]
                np.testing.assert_array_equal(array, some(1)[split][at], strict=True)  # checks the dtype too
                assert isinstance(array, np.memmap)
                assert array.mode == "r"
    names = [f"{split}-{what}.npy" for split in ("test", "train") for what in ("images", "labels")]
    assert files_of(source) == ["lock", *names]


def test_read_only_cache_is_read(source: Path) -> None:
    cached("few", [source], lambda: some(1))
    lock = folder_of(source) / "lock"
    lock.unlink()
    lock.mkdir()  # now no process can lock it, not even one of root
    assert cached("few", [source], never)["test"][1].tolist() == [1] * 10


@pytest.mark.parametrize("change", ["size", "mtime", "path", "name"])
def test_changed_source_is_decoded_again(source: Path, change: str) -> None:
    cached("few", [source], lambda: some(1))
    before = source.stat()
    other = source
    if change == "path":
        (source.parent / "other").mkdir()
        other = source.rename(source.parent / "other" / source.name)
    elif change == "size":
        source.write_bytes(b"three")
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "mtime":
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    again = cached("other" if change == "name" else "few", [other], lambda: some(2))
    assert again["train"][0][0, 0, 0, 0] == 2


def test_source_changed_while_decoding_raises(source: Path) -> None:
    def make() -> Splits:
        source.write_bytes(b"another")
        return some(1)

    with raises(UsageError, "file_changed", path=str(source.parent)):
        cached("few", [source], make)
    assert files_of(source) == ["lock"]
    gone = source.parent / "gone"
    with raises(UsageError, "unreadable_file", path=str(gone)):
        cached("few", [gone], never)


def packed(array: NDArray[Any]) -> bytes:
    np.savez(file := io.BytesIO(), array)
    return file.getvalue()


def saved(array: NDArray[Any]) -> bytes:
    np.save(file := io.BytesIO(), array)
    return file.getvalue()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-1],
    "longer": lambda content: content + b"x",
    "empty": lambda _: b"",
    "no header": lambda _: b"\x93NUMPY\x01\x00\xff\xff",
    "bad header": lambda _: b"\x93NUMPY\x01\x00\x0a\x00{'a': '''\n",
    "claims more": lambda content: content.replace(b"(10", b"(11", 1),
    "claims less": lambda content: content.replace(b"(10", b"(09", 1),
    "images of another shape": lambda _: saved(np.zeros((10, 3, 32, 31), np.uint8)),
    "labels of another shape": lambda _: saved(np.zeros((10, 1), np.int64)),
    "fewer images": lambda _: saved(np.zeros((9, 3, 32, 32), np.uint8)),
    "fewer labels": lambda _: saved(np.zeros(9, np.int64)),
    "images of another type": lambda _: saved(np.zeros((10, 3, 32, 32), np.int8)),
    "labels of another type": lambda _: saved(np.zeros(10)),
    "packed": lambda _: packed(some(1)["train"][1]),
}


@pytest.mark.parametrize("damage", [*DAMAGE, "gone"])
@pytest.mark.parametrize("name", ["train-images.npy", "test-labels.npy"])
def test_damaged_cache_file_is_written_again(source: Path, name: str, damage: str) -> None:
    cached("few", [source], lambda: some(1))
    path = folder_of(source) / name
    content = path.read_bytes()
    path.unlink()
    if damage in DAMAGE:
        path.write_bytes(DAMAGE[damage](content))
    assert is_made_anew(source)
    assert cached("few", [source], never)["test"][1].tolist() == [2] * 10


@pytest.mark.parametrize("step", ["make", "train-images.partial", "test-images.partial"])
def test_killed_process_leaves_no_valid_cache(source: Path, step: str) -> None:
    with program("-c", PROGRAM, source, step) as process:
        says(process, f"stopped in {step}")
        process.kill()
    assert (step in files_of(source)) == (step != "make")
    assert is_made_anew(source)
    assert not list(folder_of(source).glob("*.partial"))


@pytest.mark.parametrize("killed", [False, True])
def test_second_process_waits_for_the_first(source: Path, killed: bool) -> None:
    """The other process decodes the data itself if the first is killed."""
    with program("-c", PROGRAM, source, "make") as first:
        says(first, "stopped in make")
        with program("-c", PROGRAM, source) as second:
            transcribe(says(second, "message"), **STATE)
            if killed:
                first.kill()
                says(second, "make")
            else:
                assert first.communicate("go on\n")[0] == "sum 30720\n"
            assert second.communicate()[0] == "sum 30720\n"


def test_full_disk_warns_and_leaves_no_partial_cache(source: Path) -> None:
    """A limit on file sizes makes a write fail halfway too, like a full disk."""
    mask(**STATE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with warns("no_cache", reason=os.strerror(errno.EFBIG)) as message:
            splits = cached("few", [source], lambda: some(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert message.fields["folder"] == str(folder_of(source))
    assert not isinstance(splits["train"][0], np.memmap)
    np.testing.assert_array_equal(splits["train"][0], some(1)["train"][0])
    assert files_of(source) == ["lock"]
    assert is_made_anew(source)


def test_unusable_cache_warns_and_the_data_is_returned(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    mask(**STATE)
    monkeypatch.setenv("ODDLOT_CACHE", str(source / "below"))  # its parent is a file
    with warns("no_cache", reason=os.strerror(errno.ENOTDIR)):
        assert cached("few", [source], lambda: some(1))["test"][1].tolist() == [1] * 10
    monkeypatch.delenv("ODDLOT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with warns("no_cache", reason="no home"):
        cached("few", [source], lambda: some(1))


def test_cache_folder_follows_environment_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ODDLOT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "oddlot"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # ignored, as the standard requires
    assert cache_folder() == tmp_path / ".cache" / "oddlot"
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_folder() == Path("/shared/oddlot")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ODDLOT_CACHE", "mine")
    assert cache_folder() == tmp_path / "mine"


def test_cached_array_gives_no_warning(source: Path) -> None:
    from oddlot.data.batches import Batches

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = Batches(cached("few", [source], lambda: some(1))["train"])
    assert batches.fetch(np.array([3, 1]))[0].shape == (2, 3, 32, 32)
