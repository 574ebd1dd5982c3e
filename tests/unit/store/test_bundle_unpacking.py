"""Unpacking: what strangers send comes out as a tree, or nothing does and every reason is told."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from stoker.core.errors import InvalidArchive, LocalFile
from stoker.store.archives.archive_members import MOST_SHOWN, ArchiveLimits
from stoker.store.archives.unpack import UnpackedBundle, unpack
from stoker.store.trees import scan_tree
from tests.unit.store.hostile_archives import (
    END,
    file,
    folder,
    gnu_long,
    hardlink,
    header,
    packed,
    padded,
    paths_of,
    pax,
    pax_record,
    squeezed,
    symlink,
    tar,
)
from tests.unit.store.real_stores import fill


class Out:
    """Where archives are unpacked; nothing of a refused one may stay."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "out"
        self._outside = folder

    def unpack(self, archive: bytes, **options: object) -> UnpackedBundle:
        return unpack(io.BytesIO(archive), str(self.path), **options)  # type: ignore[arg-type]

    def faults(self, archive: bytes, **options: object) -> dict[str, str]:
        """Return the faults of an archive by member, bare and compressed alike."""
        told = []
        for form in (archive, squeezed(archive)):
            before = sorted(self._outside.rglob("*"))
            with pytest.raises(InvalidArchive) as refused:
                self.unpack(form, **options)
            assert sorted(self._outside.rglob("*")) == before
            told.append({fault.where: fault.message for fault in refused.value.faults})
        assert told[0] == told[1]
        return told[0]

    def fault(self, archive: bytes, **options: object) -> tuple[str, str]:
        found = self.faults(archive, **options)
        assert len(found) == 1, found
        return next(iter(found.items()))


@pytest.fixture
def out(tmp_path: Path) -> Out:
    return Out(tmp_path)


# --- what comes out ---------------------------------------------------------------------------

FILES = {"model.bin": bytes(range(256)) * 9000, "a/b/c": b"deep", "empty": b"", "run": b"#!/bin/sh\n"}


def test_a_packed_tree_comes_out_as_it_was(tmp_path: Path, out: Out) -> None:
    fill(tmp_path / "tree", FILES)
    (tmp_path / "tree/run").chmod(0o755)
    (tmp_path / "tree/a/up").symlink_to("../run")
    bundle, archive = packed(tmp_path / "tree")
    unpacked = out.unpack(archive)
    assert unpacked.tree.digest() == bundle.tree_digest
    assert unpacked.tree == scan_tree(str(out.path)) == scan_tree(str(tmp_path / "tree"))
    assert (unpacked.archive_sha256, unpacked.archive_bytes) == (bundle.archive_sha256, bundle.archive_bytes)
    assert [walked.entry for walked in unpacked.found] == list(unpacked.tree.entries)
    assert {Path(walked.path) for walked in unpacked.found} == {out.path / path for path in paths_of(unpacked.tree)}
    assert unpacked.small == {str(out.path / path): FILES[path] for path in ("a/b/c", "empty", "run")}


@pytest.mark.parametrize("form", ["gnu", "posix", "ustar"])
def test_what_other_programs_pack_comes_out(form: str, tmp_path: Path, out: Out) -> None:
    names = {"x" * 120 + "/y": b"1"} if form != "ustar" else {}
    fill(tmp_path / "tree", FILES | names)
    (tmp_path / "tree/link").symlink_to("a/b")
    os.link(tmp_path / "tree/model.bin", tmp_path / "tree/twin.bin")
    (tmp_path / "tree/empty folder").mkdir()
    command = ["tar", f"--format={form}", "-C", str(tmp_path / "tree"), "-cf", str(tmp_path / "it.tar"), "."]
    subprocess.run(command, check=True)
    for archive in ((tmp_path / "it.tar").read_bytes(), squeezed((tmp_path / "it.tar").read_bytes())):
        unpacked = out.unpack(archive)
        assert unpacked.tree == scan_tree(str(tmp_path / "tree")) == scan_tree(str(out.path))
        assert os.path.samefile(out.path / "twin.bin", out.path / "model.bin")
        subprocess.run(["rm", "-r", str(out.path)], check=True)


def test_what_python_packs_comes_out(tmp_path: Path, out: Out) -> None:
    fill(tmp_path / "tree", FILES | {"größe/" + "ü" * 80: b"1"})
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w", format=form) as archive:
            archive.add(tmp_path / "tree", arcname="")
        assert out.unpack(made.getvalue()).tree == scan_tree(str(tmp_path / "tree"))
        subprocess.run(["rm", "-r", str(out.path)], check=True)


def test_what_the_zstd_program_makes_comes_out(tmp_path: Path, out: Out) -> None:
    (tmp_path / "it.tar").write_bytes(tar(file("data", os.urandom(3_000_000)), file("zeros", bytes(3_000_000))))
    for level in ("-1", "-19"):
        subprocess.run(["zstd", "-qf", level, "it.tar"], cwd=tmp_path, check=True)
        assert paths_of(out.unpack((tmp_path / "it.tar.zst").read_bytes()).tree) == ["data", "zeros"]
        subprocess.run(["rm", "-r", str(out.path)], check=True)


def test_modes_but_for_the_executable_bit_are_left_behind(out: Out) -> None:
    members = [
        file(name, mode=mode) for name, mode in (("a", 0o4755), ("b", 0o2644), ("c", 0o777), ("d", 0), ("e", 0o444))
    ]
    previous = os.umask(0o077)
    try:
        unpacked = out.unpack(tar(*members))
    finally:
        os.umask(previous)
    assert [entry.executable for entry in unpacked.tree.entries] == [True, False, True, False, False]
    modes = [os.stat(out.path / name).st_mode & 0o7777 for name in "abcde"]
    assert modes == [0o755, 0o600, 0o755, 0o600, 0o600]
    assert scan_tree(str(out.path)) == unpacked.tree


def test_a_hard_link_to_a_file_before_it_becomes_an_entry_that_takes_no_space(out: Out) -> None:
    large = b"z" * 100_000
    unpacked = out.unpack(
        tar(
            file("a", b"one", mode=0o755),
            hardlink("b", "a"),
            hardlink("c", "./b"),
            file("d/e", large),
            hardlink("f", "d/e"),
        )
    )
    assert {path: (out.path / path).read_bytes() for path in paths_of(unpacked.tree)} == {
        "a": b"one", "b": b"one", "c": b"one", "d/e": large, "f": large
    }  # fmt: skip
    assert unpacked.tree == scan_tree(str(out.path))
    assert len({os.stat(out.path / path).st_ino for path in ("a", "b", "c")}) == 1


def test_where_a_file_can_have_no_more_names_it_is_copied_once_for_all_that_follow(
    out: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = os.link

    def at_most_three(source: str, *arguments: Any, **more: Any) -> None:
        if os.stat(source).st_nlink >= 3:
            raise OSError(errno.EMLINK, "too many links")
        linked(source, *arguments, **more)

    monkeypatch.setattr(os, "link", at_most_three)
    unpacked = out.unpack(
        tar(file("a", b"z" * 100_000), *(hardlink(f"b{number}", "a") for number in range(8)), hardlink("c", "b0"))
    )
    assert unpacked.tree == scan_tree(str(out.path))
    assert len({os.stat(out.path / path).st_ino for path in paths_of(unpacked.tree)}) == 4


def test_links_may_go_anywhere_inside_and_to_nothing(out: Out) -> None:
    links = {
        "a/up": "../b",
        "b": "c/../d",
        "loop": "loop",
        "one": "two",
        "two": "one",
        "here": ".",
        "top/t": "..",
        "gone": "no/x",
    }
    unpacked = out.unpack(tar(*(symlink(*link) for link in links.items()), file("d", b"1")))
    assert {entry.path: entry.link_to for entry in unpacked.tree.entries if entry.link_to} == links
    assert scan_tree(str(out.path)) == unpacked.tree


def test_empty_folders_and_the_top_itself_leave_nothing(out: Out) -> None:
    unpacked = out.unpack(tar(folder("./"), folder("."), folder("./a/"), folder("a/"), folder("b/"), file("./a/x")))
    assert paths_of(unpacked.tree) == ["a/x"]
    assert sorted(path.name for path in out.path.iterdir()) == ["a"]


def test_a_comment_for_the_whole_archive_is_no_member(out: Out) -> None:
    assert paths_of(out.unpack(tar(pax({"comment": "abc"}, kind=b"g"), file("a"))).tree) == ["a"]


def test_a_tar_may_be_padded_with_zeros(out: Out) -> None:
    assert paths_of(out.unpack(tar(file("a"), end=bytes(10240))).tree) == ["a"]


def test_the_folder_must_be_new(out: Out) -> None:
    out.path.mkdir()
    (out.path / "mine").write_bytes(b"1")
    with pytest.raises(LocalFile):
        out.unpack(tar(file("a")))
    assert (out.path / "mine").read_bytes() == b"1"


def test_a_stream_that_breaks_leaves_nothing(tmp_path: Path, out: Out) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 1000:
                message = "the other side is gone"
                raise ConnectionResetError(message)
            return super().read(min(size or 0, 512))

    with pytest.raises(ConnectionResetError):
        unpack(Broken(tar(file("a", bytes(5000)))), str(out.path))
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_comes_byte_by_byte_is_read(tmp_path: Path, out: Out) -> None:
    class Drops(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 1))

    data = tar(file("a", b"1" * 1000), symlink("b", "a"))
    for number, form in enumerate((data, squeezed(data))):
        assert paths_of(unpack(Drops(form), str(tmp_path / str(number))).tree) == ["a", "b"]


# --- names ------------------------------------------------------------------------------------

BAD_NAMES = [
    "../evil", "a/../../evil", "/etc/evil", "a/../b", "//server/share", "C:\\evil", "c:evil", "a\\b", "..\\evil",
    "a//b", "a/./b", "..", "a/..", "nul", "CON.txt", "a/aux", "trailing.", "trailing ", "a./b", "line\nbreak",
    "esc\x1b[2J",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
@pytest.mark.parametrize("kind", [b"0", b"2", b"1", b"5"], ids=["file", "symlink", "hardlink", "folder"])
def test_an_unsafe_name_is_refused(name: str, kind: bytes, out: Out) -> None:
    _, message = out.fault(tar(file("first"), header(name, kind=kind, link="first")))
    assert "unsafe name" in message


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a\\b", "nul\0x", "a\nb"], ids=ascii)
def test_an_unsafe_name_in_a_long_header_is_refused(name: str, out: Out) -> None:
    for members in ((pax({"path": name}), file("good")), (gnu_long(name.encode() + b"\0"), file("good"))):
        _, message = out.fault(tar(*members))
        assert "unsafe name" in message


def test_an_unsafe_name_made_of_two_fields_is_refused(out: Out) -> None:
    _, message = out.fault(tar(file("evil", prefix=b"..")))
    assert "unsafe name" in message
    assert out.fault(tar(file("evil", prefix=b"/etc")))[0] == "/etc/evil"


def test_a_name_that_is_no_text_is_refused_and_shown_safely(out: Out) -> None:
    where, message = out.fault(tar(file(b"\xff\xfe")))
    assert "not Unicode" in message
    assert where.isascii()
    assert where.isprintable()


def test_an_empty_name_is_refused(out: Out) -> None:
    assert "empty" in out.fault(tar(file("")))[1]


def test_a_name_that_is_too_long_or_too_deep_is_refused(out: Out) -> None:
    assert "255 bytes" in out.fault(tar(pax({"path": "x" * 256}), file("a")))[1]
    assert "1024 bytes" in out.fault(tar(pax({"path": "/".join(["x" * 200] * 6)}), file("a")))[1]
    assert "100 levels" in out.fault(tar(pax({"path": "d/" * 100 + "x"}), file("a")))[1]
    assert paths_of(out.unpack(tar(pax({"path": "d/" * 99 + "x"}), file("a"))).tree) == ["d/" * 99 + "x"]


@pytest.mark.parametrize("second", [file("a"), folder("a"), symlink("a", "b"), file("./a"), hardlink("a", "a")])
def test_a_name_that_comes_twice_is_refused(second: bytes, out: Out) -> None:
    assert "twice" in out.fault(tar(file("a"), second))[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [("Model", "model"), ("a/B", "a/b"), ("straße", "STRASSE"), ("caf\u00e9", "cafe\u0301"), ("\u212b", "\u00c5")],
)
def test_names_that_are_one_elsewhere_are_refused(one: str, other: str, out: Out) -> None:
    for members in ((file(one), file(other)), (symlink(one, "x"), file(other)), (file(one), symlink(other, "x"))):
        assert "clashes" in out.fault(tar(*members))[1]


def test_folders_that_are_one_elsewhere_are_refused(out: Out) -> None:
    assert "clashes" in out.fault(tar(file("Data/a"), file("data/b")))[1]
    assert "clashes" in out.fault(tar(file("x/Data/a"), file("x/data/b")))[1]


@pytest.mark.parametrize(
    "members",
    [
        (file("a"), file("a/b")),
        (file("a/b"), file("a")),
        (symlink("a", "b"), file("a/c")),
        (file("a/c"), symlink("a", "b")),
        (file("a"), folder("a/b")),
        (folder("a/b"), file("a")),
        (file("A"), file("a/b")),
    ],
)
def test_a_folder_and_a_file_of_one_name_are_refused(members: tuple[bytes, ...], out: Out) -> None:
    assert len(out.faults(tar(*members))) == 1


# --- links ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    ["..", "../x", "a/../../x", "/etc/passwd", "/", "./../..", "C:\\x", "a\\..\\..\\x", "c:x", "", "a\nb"],
    ids=ascii,
)
def test_a_symlink_that_leads_out_is_refused(target: str, out: Out) -> None:
    assert "symlink" in out.fault(tar(symlink("link", target)))[1]


def test_a_symlink_that_leads_out_through_another_is_refused(out: Out) -> None:
    through = [symlink("a/down", "b/c"), symlink("out", "a/down/../../..")]
    assert list(out.faults(tar(*through))) == ["out"]
    assert list(out.faults(tar(*reversed(through)))) == ["out"]
    climbing = [symlink("deep/er/up", "../.."), symlink("deep/er/top", "up/.."), symlink("x", "deep/er/up/../y")]
    assert set(out.faults(tar(*climbing))) == {"deep/er/top", "x"}


def test_a_file_written_through_a_link_of_the_archive_is_refused(tmp_path: Path, out: Out) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    found = out.faults(tar(symlink("door", str(outside)), file("door/evil")))
    assert set(found) == {"door", "door/evil"}
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "missing", "later", "folder", "link", "self"])
def test_a_hard_link_to_anything_but_a_file_before_it_is_refused(target: str, out: Out) -> None:
    archive = tar(folder("folder"), symlink("link", "later"), hardlink("self", target), file("later"))
    where, message = out.fault(archive)
    assert where == "self"
    assert "hard link" in message


def test_chains_of_links_that_grow_are_followed_only_so_far(out: Out) -> None:
    links = [symlink(f"l{number}", f"l{number + 1}/l{number + 1}") for number in range(60)]
    assert len(out.unpack(tar(*links)).tree.entries) == 60


# --- sorts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "said"), [(b"3", "device"), (b"4", "device"), (b"6", "pipe"), (b"V", "unknown"), (b"Z", "unknown")]
)
def test_what_is_no_file_folder_or_link_is_refused(kind: bytes, said: str, out: Out) -> None:
    where, message = out.fault(tar(header("odd", kind=kind), file("good")))
    assert where == "odd"
    assert said in message


def test_sparse_files_are_refused(out: Out) -> None:
    assert "sparse" in out.fault(tar(header("old", kind=b"S", size=512), bytes(512)))[1]
    new = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 60)}
    assert out.fault(tar(pax(new), file("bomb", bytes(512)), file("good"))) == ("bomb", "is a sparse file")


def test_real_sparse_files_are_refused(tmp_path: Path, out: Out) -> None:
    with (tmp_path / "bomb").open("wb") as bomb:
        bomb.truncate(1 << 30)
    for form in ("gnu", "posix"):
        command = ["tar", f"--format={form}", "--sparse", "-C", str(tmp_path), "-cf", "-", "bomb"]
        made = subprocess.run(command, check=True, capture_output=True).stdout
        assert "sparse" in out.fault(made)[1]


# --- amounts ----------------------------------------------------------------------------------


def test_more_members_than_allowed_are_refused(out: Out) -> None:
    limits = ArchiveLimits(members=5)
    assert len(out.unpack(tar(*(file(str(number)) for number in range(5))), limits=limits).tree.entries) == 5
    subprocess.run(["rm", "-r", str(out.path)], check=True)
    for one in (file, folder):
        members = tar(*(one(str(number)) for number in range(6)))
        assert "more than 5 members" in out.fault(members, limits=limits)[1]


def test_more_bytes_than_allowed_are_refused_before_they_are_written(out: Out) -> None:
    limits = ArchiveLimits(total_bytes=20_000)
    assert "members have more" in out.fault(tar(file("a", bytes(15_000)), header("b", size=1 << 50)), limits=limits)[1]


def test_hard_links_count_as_the_files_that_they_become(out: Out) -> None:
    bomb = tar(file("a", bytes(10_000)), *(hardlink(f"link{number}", "a") for number in range(100)))
    assert "members have more" in out.fault(bomb, limits=ArchiveLimits(total_bytes=100_000))[1]


def test_headers_count_as_well(out: Out) -> None:
    assert (
        "it expands to more than"
        in out.fault(tar(*(folder(str(number)) for number in range(100))), limits=ArchiveLimits(total_bytes=20_000))[1]
    )


def test_what_grows_out_of_next_to_nothing_is_refused(tmp_path: Path, out: Out) -> None:
    bomb = squeezed(tar(file("zeros", bytes(30_000_000))))
    assert len(bomb) < 10_000
    with pytest.raises(InvalidArchive) as refused:
        out.unpack(bomb, limits=ArchiveLimits(ratio=100, ratio_free_bytes=1 << 20))
    assert "it expands by more than" in refused.value.faults[0].message
    assert list(tmp_path.iterdir()) == []
    assert out.unpack(bomb).tree.size_bytes == 30_000_000


def test_a_bomb_that_says_its_size_is_refused_at_once(out: Out) -> None:
    with pytest.raises(InvalidArchive, match="it expands to more than") as refused:
        out.unpack(squeezed(bytes(50_000_000)), limits=ArchiveLimits(total_bytes=1 << 20))
    assert "it expands to more than" in refused.value.faults[0].message


def test_a_frame_that_wants_much_memory_is_refused(out: Out) -> None:
    settings = zstandard.ZstdCompressionParameters.from_level(1, window_log=27, write_content_size=False)
    squeezer = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    with pytest.raises(InvalidArchive) as refused:
        out.unpack(squeezer.compress(tar(file("a"))) + squeezer.flush())
    assert "memory" in refused.value.faults[0].message


def test_all_faults_are_counted_and_the_first_shown(out: Out) -> None:
    members = [file(f"../{number}") for number in range(50)]
    with pytest.raises(InvalidArchive) as refused:
        out.unpack(tar(file("good"), *members, symlink("link", "/etc")))
    error = refused.value
    assert len(error.faults) == MOST_SHOWN
    assert error.data["count"] == 51
    assert "20 of 51" in error.message
    assert [fault.where for fault in error.faults] == [f"../{number}" for number in range(MOST_SHOWN)]


# --- damage -----------------------------------------------------------------------------------

GOOD = tar(file("a", b"1" * 3000), symlink("b", "a"), file("c/d", os.urandom(3000)))


@pytest.mark.parametrize(
    "archive", [b"", b"\x28\xb5\x2f\xfd", b"no tar", bytes(100), b"PK\x03\x04" + bytes(600)], ids=ascii
)
def test_what_is_no_archive_is_refused(archive: bytes, out: Out) -> None:
    with pytest.raises(InvalidArchive):
        out.unpack(archive)


def test_an_archive_that_ends_anywhere_too_early_is_refused(tmp_path: Path, out: Out) -> None:
    for whole in (GOOD, squeezed(GOOD)):
        for end in [*range(0, len(whole) - 1, 97), len(whole) - 1]:
            with pytest.raises(InvalidArchive):
                out.unpack(whole[:end])
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_bit_anywhere_in_a_frame_is_found(tmp_path: Path, out: Out) -> None:
    whole = squeezed(GOOD)
    for at in [*range(20), *range(20, len(whole), 61), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        # One bit of a frame's head means nothing, and to nobody.
        if at == 4:
            continue
        with pytest.raises(InvalidArchive):
            out.unpack(bytes(damaged))
    assert list(tmp_path.iterdir()) == []


def test_whatever_follows_the_end_is_refused(out: Out) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip"
    for more in (b"x", bytes(1), squeezed(GOOD), squeezed(b""), skippable, squeezed(tar(file("evil")))):
        with pytest.raises(InvalidArchive) as refused:
            out.unpack(squeezed(GOOD) + more)
        assert "data after" in refused.value.faults[0].message
    assert "data after" in out.fault(GOOD + b"x")[1]
    assert "data after" in out.fault(GOOD + tar(file("evil")))[1]


def test_a_frame_before_the_tar_is_refused(out: Out) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip"
    for before in (skippable, squeezed(b"")):
        with pytest.raises(InvalidArchive):
            out.unpack(before + squeezed(GOOD))


def test_one_block_of_zeros_is_no_end(out: Out) -> None:
    assert "zeros" in out.fault(tar(file("a"), bytes(512), file("b")))[1]
    assert "early" in out.fault(tar(file("a"), end=bytes(512)))[1]


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (gzip.compress(b"x" * 5000), "this is gzip"),
        (bz2.compress(b"x" * 5000), "this is bzip2"),
        (lzma.compress(b"x" * 5000), "this is xz"),
        (b"PK\x03\x04" + bytes(2000), "this is zip"),
        (b"import os\n", "not a tar"),
        (b"import os\n" * 1000, "not a tar"),
        (b"", "the file is empty"),
    ],
    ids=["gzip", "bzip2", "xz", "zip", "short text", "text", "nothing"],
)
def test_what_is_no_tar_at_all_is_told_by_what_it_is(out: Out, start: bytes, name: str) -> None:
    assert out.fault(start) == ("", f"{name}; supported are .tar and .tar.zst")


@pytest.mark.parametrize("name", ["BZh9", "PK"])
def test_a_tar_whose_first_name_looks_like_another_format_is_a_tar(out: Out, name: str) -> None:
    assert [walked.entry.path for walked in out.unpack(tar(file(name, b"x"))).found] == [name]


def test_a_header_with_a_wrong_checksum_is_refused(out: Out) -> None:
    damaged = bytearray(GOOD)
    damaged[0] ^= 1
    assert "checksum" in out.fault(bytes(damaged))[1]


@pytest.mark.parametrize(
    "size", [b"\xff" * 12, b"\x80" + b"\xff" * 11, b"-0000000001\0", b"0x000000001\0", b"9" * 11 + b"\0"], ids=ascii
)
def test_a_size_that_can_not_be_is_refused(size: bytes, out: Out) -> None:
    assert "number" in out.fault(tar(header("a", size=size)))[1]


def test_a_size_in_the_form_for_large_files_is_read(out: Out) -> None:
    size = b"\x80" + (3).to_bytes(11, "big")
    assert out.unpack(tar(header("a", size=size), padded(b"abc"))).tree.size_bytes == 3


@pytest.mark.parametrize("kind", [b"1", b"2", b"5", b"3", b"6"])
def test_content_where_there_can_be_none_is_refused(kind: bytes, out: Out) -> None:
    archive = tar(file("a"), header("odd", kind=kind, link="a", size=512), file("hidden", b""))
    assert "content" in out.fault(archive)[1]


# --- extended headers -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_a_large_extended_header_is_refused_unread(kind: bytes, out: Out) -> None:
    for size in (64 * 1024 + 1, 1 << 40):
        assert "extended header" in out.fault(tar(header("h", kind=kind, size=size), file("a")))[1]


def test_two_headers_that_say_the_same_are_refused(out: Out) -> None:
    for members in (
        (pax({"path": "a"}), pax({"path": "b"})),
        (pax({"mtime": "1"}), pax({"mtime": "2"})),
        (gnu_long(b"a\0"), gnu_long(b"b\0")),
        (pax({"path": "a"}), gnu_long(b"b\0")),
        (gnu_long(b"b\0"), pax({"path": "a"})),
        (pax(pax_record("path", "a") + pax_record("path", "b")),),
        (pax(pax_record("size", "1") + pax_record("size", "2")),),
    ):
        assert "twice" in out.fault(tar(*members, file("c")))[1]


def test_a_global_header_that_renames_is_refused(out: Out) -> None:
    for key in ("path", "linkpath", "size"):
        assert "global" in out.fault(tar(pax({key: "1"}, kind=b"g"), file("a")))[1]
    assert "global" in out.fault(tar(*(pax({"comment": "x"}, kind=b"g") for _ in range(100)), file("a")))[1]


@pytest.mark.parametrize(
    "body",
    [
        b"path=a\n", b"9 path=a", b"0 path=a\n", b"5 path=a\n", b"99 path=a\n", b"9  path=a\n", b"9999999999 path=a\n",
        b"-9 path=a\n", b"8 patha\n", b"\n", b"9\tpath=a\n",
    ],
    ids=ascii,
)  # fmt: skip
def test_an_extended_header_that_does_not_parse_is_refused(body: bytes, out: Out) -> None:
    assert "extended header" in out.fault(tar(pax(body), file("a")))[1]


@pytest.mark.parametrize("size", ["-1", "1e3", "", " 1", "9" * 19, "9" * 30, "\u0661"])
def test_a_size_in_an_extended_header_that_can_not_be_is_refused(size: str, out: Out) -> None:
    assert "number" in out.fault(tar(pax({"size": size}), file("a")))[1]


def test_a_size_in_an_extended_header_counts(out: Out) -> None:
    data = b"q" * 600
    unpacked = out.unpack(tar(pax({"size": "600"}), header("a", size=0), padded(data), file("b")))
    assert (out.path / "a").read_bytes() == data
    assert paths_of(unpacked.tree) == ["a", "b"]


def test_long_links_are_read(out: Out) -> None:
    target = "d/" * 60 + "x"
    for members in (
        (gnu_long(target.encode() + b"\0", kind=b"K"), symlink("a", "cut")),
        (pax({"linkpath": target}), symlink("b", "cut")),
    ):
        unpacked = out.unpack(tar(*members))
        assert unpacked.tree.entries[0].link_to == target
        subprocess.run(["rm", "-r", str(out.path)], check=True)


def test_an_extended_header_without_a_member_is_refused(out: Out) -> None:
    assert "extended header" in out.fault(tar(pax({"path": "a"}), end=END))[1]
