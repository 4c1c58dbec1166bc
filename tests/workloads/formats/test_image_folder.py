"""Tests of images in archives and folders: errors name file and member, and no file is unpacked to disk."""

import gzip
import lzma
import os
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oddlot.core.support import validation as unpacked
from oddlot.core.support.errors import UsageError
from oddlot.workloads.formats import tar_members as archives
from oddlot.workloads.formats.image_folder import read_archives, read_tree, tree_files
from tests.transcripts import mask, raises
from tests.workloads.small_cifar import archive, encoded, photos, picture, tree

NAME = "train/cat/0001.png"
GOOD = encoded(picture(3))
GREY = np.zeros((32, 32), np.uint8)


def png_that_claims(side: int) -> bytes:
    """Return a small PNG file with a header that claims `side` x `side` pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return GOOD[:8] + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + GOOD[33:]


FORMS: dict[str, Callable[[Path, dict[str, bytes]], Any]] = {
    "cifar10.tar.gz": lambda path, contents: read_archives([archive(path, contents)]),
    "folder": lambda path, contents: read_tree(tree(path, contents), tree_files(path)),
}


BAD: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "too large": ("wrong_size", encoded(np.zeros((64, 64, 3), np.uint8)), {"size": (64, 64)}),
    "claims to be large": ("wrong_size", png_that_claims(9_000), {"size": (9_000, 9_000)}),
    "cut": ("damaged_file", GOOD[:-60], {}),
    "cut JPEG": ("damaged_file", encoded(picture(3), "JPEG")[:-300], {}),
    "grey": ("not_rgb", encoded(GREY), {"mode": "L"}),
    "grey JPEG": ("not_rgb", encoded(GREY, "JPEG"), {"mode": "L"}),
    "RGBA": ("not_rgb", encoded(picture(3), mode="RGBA"), {"mode": "RGBA"}),
    "palette": ("not_rgb", encoded(picture(3), mode="P"), {"mode": "P"}),
    "CMYK": ("not_rgb", encoded(picture(3), "JPEG", mode="CMYK"), {"mode": "CMYK"}),
    "BMP": ("other_format", encoded(picture(3), "BMP"), {}),
    "empty": ("other_format", b"", {}),
    "long": ("file_too_large", GOOD.ljust(2 << 20, b"\0"), {"most": 1 << 20}),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_picture_is_named_with_its_error(tmp_path: Path, fault: str) -> None:
    code, content, fields = BAD[fault]
    for form, read in FORMS.items():
        with raises(UsageError, code, path=str(tmp_path / form), member=NAME, **fields):
            read(tmp_path / form, dict(photos()) | {NAME: content})


def test_huge_picture_is_not_decoded(tmp_path: Path) -> None:
    for side in (12_000, 60_000):
        with raises(UsageError, "damaged_file", member=NAME) as rejection:
            read_archives([archive(tmp_path / "cifar10.tar", {NAME: png_that_claims(side)})])
        assert str(side**2) in rejection.fields["reason"], "Pillow's words"


def test_unknown_class_raises(tmp_path: Path) -> None:
    for form, read in FORMS.items():
        for kind, meant in (("unicorn", None), ("catt", "cat")):  # sorted before "unicorn"
            with raises(UsageError, "unknown_name", member=f"train/{kind}/1.png", given=kind, nearest=meant):
                read(tmp_path / form, {f"train/{kind}/1.png": GOOD})


@pytest.mark.parametrize(
    "name",
    [
        *("../train/cat/1.png", "/train/cat/1.png", "train/cat/x/1.png", "train/1.png", "val/cat/1.png"),
        *("train/../cat/1.png", "README", "TRAIN/cat/1.png", "train/cat/\x1b[2J\n.txt", "train/cat/0001.gif"),
    ],
)
def test_invalid_member_name_raises_and_nothing_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = archive(tmp_path / "cifar10.tar", {name: GOOD})
    with raises(UsageError, "invalid_name", path=str(path), member=name) as rejection:
        read_archives([path])
    assert str(rejection.value).isprintable()
    assert sorted(os.listdir(tmp_path)) == ["cifar10.tar", "here"]  # noqa: PTH208 - only names are needed
    assert not list((tmp_path / "here").iterdir())


def test_hidden_files_are_ignored(tmp_path: Path) -> None:
    contents = {"train/cat/.DS_Store": b"x", "./train/cat/._1.png": b"x", "./train/cat/1.PNG": GOOD}
    for form, read in FORMS.items():
        assert read(tmp_path / form, contents)["train"][1].tolist() == [3]


def test_duplicate_names_raise(tmp_path: Path) -> None:
    paths = [archive(tmp_path / f"cifar10-{part}.tar", {NAME: GOOD}) for part in "ab"]
    with raises(UsageError, "duplicate_name", path=str(paths[1]), member=NAME):
        read_archives(paths)


def test_links_and_special_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "cifar10.tar"
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        with tarfile.open(path, "w") as tar:
            member = tarfile.TarInfo(NAME)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        with raises(UsageError, "not_a_file", path=str(path), member=NAME):
            read_archives([path])
    (tmp_path / NAME).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / NAME)
    with raises(UsageError, "not_a_file", path=str(tmp_path), member=NAME):
        read_tree(tmp_path, tree_files(tmp_path))


@pytest.mark.parametrize("end", [".tar", ".tar.gz", ".tgz", ".tar.xz"])
def test_damaged_archive_raises(tmp_path: Path, end: str) -> None:
    noise = np.random.Generator(np.random.PCG64(0)).bytes(20_000)
    path = archive(tmp_path / f"cifar10{end}", dict(photos()) | {"train/cat/.noise": noise})
    whole = path.read_bytes()
    byte = len(whole) - 9_000  # in the noise: it is not decoded
    flipped = whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :]
    # An uncompressed archive has no checksum of its contents.
    for content in (whole[:-12_000], b"no archive", b"", *([flipped] if end != ".tar" else [])):
        path.write_bytes(content)
        with raises(UsageError, "damaged_file", path=str(path)):
            read_archives([path])


def test_huge_header_size_is_rejected(tmp_path: Path) -> None:
    """The archive has a few bytes, but would fill the memory when unpacked."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    path = tmp_path / "cifar10.tar"
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT))
    with raises(UsageError, "damaged_file") as rejection:
        read_archives([path])
    assert str(1 << 40) in rejection.fields["reason"]


def test_too_large_member_is_not_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "cifar10.tar.gz", {NAME: bytes(20 << 20)})
    with raises(UsageError, "file_too_large", member=NAME, bytes=20 << 20, most=1 << 20):
        read_archives([path])


@pytest.mark.parametrize("end", [".tar.gz", ".tar.xz"])
@pytest.mark.parametrize("member", ["train/cat/.hidden", None], ids=["in a member", "behind all"])
def test_archive_that_unpacks_to_too_much_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, member: str | None
) -> None:
    monkeypatch.setattr(unpacked, "MIN_BYTES", 10_000)
    plain = archive(tmp_path / "a.tar", {member: bytes(20 << 20)} if member else {}).read_bytes()
    path = tmp_path / f"cifar10{end}"
    path.write_bytes((gzip if end == ".tar.gz" else lzma).compress(plain.ljust(20 << 20, b"\0")))
    mask(most=r"[\d,]+(?= bytes)")  # depends on the compressed size, and so on the compression libraries
    with raises(UsageError, "unpacks_to_too_much", path=str(path)):
        read_archives([path])


def test_endless_nested_headers_are_rejected(tmp_path: Path) -> None:
    """Each header announces a long name for the next member, and the next member is such a header again."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1
    path = tmp_path / "cifar10.tar"
    path.write_bytes((member.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * sys.getrecursionlimit())
    with raises(UsageError, "damaged_file", path=str(path)):
        read_archives([path])


def test_too_many_members_or_a_missing_archive_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_MEMBERS", 5)
    path = tmp_path / "cifar10.tar"
    with raises(UsageError, "unreadable_file", path=str(path)):
        read_archives([path])
    with raises(UsageError, "too_many_members", path=str(path), most=5):
        read_archives([archive(path, dict(photos()))])


def test_jpeg_pictures_are_read(tmp_path: Path) -> None:
    smooth = np.full((32, 32, 3), (200, 100, 50), np.uint8)
    path = archive(tmp_path / "cifar10.tar", {"test/truck/1.jpeg": encoded(smooth, "JPEG")})
    images, labels = read_archives([path])["test"]
    assert labels.tolist() == [9]
    assert images.mean((0, 2, 3)).tolist() == pytest.approx([200, 100, 50], abs=3)


def test_missing_pillow_raises_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with raises(UsageError, "not_installed", package="Pillow"):
        read_archives([archive(tmp_path / "cifar10.tar", {NAME: GOOD})])
