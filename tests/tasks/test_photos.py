"""Pictures in archives and folders: hostile ones get a sentence with file and member, and nothing is unpacked."""

import io
import os
import struct
import sys
import tarfile
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oddlot.core.errors import UsageError
from oddlot.tasks import archives
from oddlot.tasks.photos import read_archives, read_tree, tree_files
from tests.tasks.small_cifar import archive, encoded, photos, picture, tree

NAME = "train/cat/0001.png"
GOOD = encoded(picture(3))
GREY = np.zeros((32, 32), np.uint8)


def png_that_claims(side: int) -> bytes:
    """A few bytes whose header speaks of side x side pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return GOOD[:8] + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + GOOD[33:]


def read(form: str, folder: Path, contents: dict[str, bytes]) -> Any:
    if form == "tree":
        return read_tree(tree(folder, contents), tree_files(folder))
    return read_archives([archive(folder / "cifar10.tar.gz", contents)])


@pytest.mark.parametrize("form", ["tar", "tree"])
@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        (NAME, encoded(np.zeros((64, 64, 3), np.uint8)), "it has 64 x 64 pixels, not 32 x 32"),
        (NAME, encoded(GREY), "its pixels are L, not RGB: convert it"),
        (NAME, encoded(GREY, "JPEG"), "its pixels are L, not RGB"),
        (NAME, encoded(picture(3), mode="RGBA"), "its pixels are RGBA, not RGB"),
        (NAME, encoded(picture(3), mode="P"), "its pixels are P, not RGB"),
        (NAME, encoded(picture(3), "JPEG", mode="CMYK"), "its pixels are CMYK, not RGB"),
        (NAME, encoded(picture(3), "BMP"), "it is no JPEG and no PNG picture"),
        (NAME, b"", "it is no JPEG and no PNG picture"),
        (NAME, GOOD[:-60], "it cannot be decoded"),
        (NAME, encoded(picture(3), "JPEG")[:-300], "it cannot be decoded: "),
        (NAME, png_that_claims(12_000), "it cannot be decoded: Image size (144000000 pixels) exceeds"),
        (NAME, png_that_claims(60_000), "it cannot be decoded: Image size (3600000000 pixels) exceeds"),
        (NAME, png_that_claims(9_000), "it has 9000 x 9000 pixels"),
        (NAME, GOOD + bytes(1 << 20), "bytes, more than 1,048,576|it has more than 1,048,576 bytes"),
        ("train/unicorn/0001.png", GOOD, "the class 'unicorn' is unknown: there are: airplane"),
        ("train/catt/0001.png", GOOD, "the class 'catt' is unknown: did you mean `cat`?"),
        ("train/cat/0001.gif", GOOD, "its name is none of train or test/CLASS/NAME.jpg or .png"),
    ],
)
def test_each_bad_picture_is_named_with_its_fault(
    tmp_path: Path, form: str, name: str, content: bytes, fault: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        read(form, tmp_path, dict(photos()) | {name: content})
    sentence = str(refusal.value)
    where = tmp_path if form == "tree" else tmp_path / "cifar10.tar.gz"
    assert sentence.startswith(f"{where}: {name!r}: ")
    assert any(words in sentence for words in fault.split("|")), sentence


@pytest.mark.parametrize(
    "name",
    [
        *("../train/cat/1.png", "/train/cat/1.png", "train/cat/x/1.png", "train/1.png", "val/cat/1.png"),
        *("train/../cat/1.png", "README", "TRAIN/cat/1.png", "train/cat/\x1b[2J\n.txt"),
    ],
)
def test_members_with_odd_names_are_refused_and_nothing_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError) as refusal:
        read("tar", tmp_path, {name: GOOD})
    assert f"cifar10.tar.gz: {name!r}: " in str(refusal.value)
    assert "\x1b" not in str(refusal.value)
    assert sorted(os.listdir(tmp_path)) == ["cifar10.tar.gz", "here"]  # noqa: PTH208 - names alone
    assert not list((tmp_path / "here").iterdir())


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    contents = {"train/cat/.DS_Store": b"x", "./train/cat/._1.png": b"x", "./train/cat/1.PNG": GOOD}
    assert read("tar", tmp_path, contents)["train"][1].tolist() == [3]
    assert read("tree", tmp_path, contents)["train"][1].tolist() == [3]


def test_two_pictures_of_one_name_are_refused(tmp_path: Path) -> None:
    paths = [archive(tmp_path / f"cifar10-{part}.tar", {NAME: GOOD}) for part in "ab"]
    with pytest.raises(UsageError, match=rf"cifar10-b\.tar: '{NAME}': there are two of this name"):
        read_archives(paths)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "cifar10.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(NAME)
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(UsageError, match=rf"cifar10\.tar: '{NAME}' is no file but a link"):
        read_archives([path])


def test_what_is_no_file_in_a_folder_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, {NAME: GOOD})
    os.mkfifo(tmp_path / "train/cat/0002.png")
    with pytest.raises(UsageError, match=r"'train/cat/0002\.png': it is no file"):
        read_tree(tmp_path, tree_files(tmp_path))


@pytest.mark.parametrize(
    ("end", "damage"),
    [
        *product((".tar", ".tar.gz", ".tgz", ".tar.xz"), ("cut", "foreign", "empty")),
        *product(
            (".tar.gz", ".tgz", ".tar.xz"), ("flipped",)
        ),  # a bare archive has no checksum of what is in it
    ],
)
def test_a_damaged_archive_is_told(tmp_path: Path, end: str, damage: str) -> None:
    noise = np.random.Generator(np.random.PCG64(0)).bytes(20_000)
    path = archive(tmp_path / f"cifar10{end}", dict(photos()) | {"train/cat/.noise": noise})
    whole = path.read_bytes()
    if damage == "flipped":
        byte = len(whole) - 9_000  # within the noise, which nobody looks at
        path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :])
    else:
        path.write_bytes({"cut": whole[:-12_000], "foreign": b"no archive", "empty": b""}[damage])
    with pytest.raises(UsageError, match=rf"^{path} is not a whole archive: .+\. Get it again"):
        read_archives([path])


def test_a_header_that_claims_to_be_vast_is_not_believed(tmp_path: Path) -> None:
    """Of an archive of a few bytes, which would unpack to all of the memory."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    path = tmp_path / "cifar10.tar"
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(UsageError, match="a header claims 1099511627776 bytes"):
        read_archives([path])


def test_an_archive_of_too_many_members_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_MEMBERS", 5)
    with pytest.raises(UsageError, match=r"cifar10\.tar\.gz has more than 5 members"):
        read("tar", tmp_path, dict(photos()))


def test_an_archive_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cifar10\.tar cannot be read: No such file"):
        read_archives([tmp_path / "cifar10.tar"])


def test_jpeg_pictures_are_read(tmp_path: Path) -> None:
    smooth = np.full((32, 32, 3), (200, 100, 50), np.uint8)
    images, labels = read("tar", tmp_path, {"test/truck/1.jpeg": encoded(smooth, "JPEG")})["test"]
    assert labels.tolist() == [9]
    assert images.mean((0, 2, 3)).tolist() == pytest.approx([200, 100, 50], abs=3)


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        UsageError, match=r'decoded by Pillow, which is not installed: pip install "oddlot\[images\]"'
    ):
        read("tar", tmp_path, {NAME: GOOD})


def test_the_archive_s_own_reading_needs_little(tmp_path: Path) -> None:
    """A member that unpacks to far more than a picture is refused by its size, before it is read."""
    path = tmp_path / "cifar10.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(NAME)
        member.size = 20 << 20
        tar.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(UsageError, match="it has 20,971,520 bytes, more than 1,048,576"):
        read_archives([path])
