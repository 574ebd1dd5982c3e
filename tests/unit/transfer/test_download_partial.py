from __future__ import annotations

import errno
import os
import stat

import pytest

from stoker.core.errors import LocalFile, NoSpace
from stoker.core.frozen import changed
from stoker.host.durable import NO_STEP
from stoker.host.folders import AnchoredFolder
from stoker.host.identity import mine
from stoker.transfer.download import partial as partial_module
from stoker.transfer.download.partial import WATERMARK_S, WRITE_BACK_BYTES, BytesLost, PartialFile, Sidecar, read_beside

NAMES = ("f.part", "f.part.json")
SIDECAR = Sidecar(url="https://host/f", size_bytes=1000, etag='"one"')


@pytest.fixture
def folder(tmp_path):
    with AnchoredFolder.open(str(tmp_path)) as opened:
        yield opened


@pytest.fixture
def made(folder):
    partial = PartialFile.create(folder, NAMES, SIDECAR, now_s=0.0, on_step=NO_STEP)
    yield partial
    partial.close()


def _record(folder):
    found = read_beside(folder, NAMES[1])
    assert isinstance(found, Sidecar)
    return found


def _resumed(folder, offset):
    found = PartialFile.resume(folder, NAMES, _record(folder), offset=offset, now_s=0.0)
    assert found is not None
    return found


def test_the_sidecar_stands_before_the_first_byte(folder):
    seen = []

    def look(step):
        seen.append((step, sorted(folder.names())))

    folder.write_file(NAMES[0], b"of another version")
    PartialFile.create(folder, NAMES, SIDECAR, now_s=0.0, on_step=look).close()
    assert seen == [("sidecar", [])]
    assert sorted(folder.names()) == list(NAMES)
    assert _record(folder) == changed(SIDECAR, boot_id=mine().boot_id, writer=mine())


def test_bytes_are_written_one_after_the_other(folder, made):
    made.write(b"abc", 0.0)
    made.write(b"def", 0.0)
    assert (made.end_bytes, made.size_bytes) == (6, 6)
    assert folder.read_file(NAMES[0], 100) == b"abcdef"


def test_the_length_is_never_more_than_was_written(made):
    made.write(bytes(5), 0.0)
    assert made.size_bytes == 5


def test_the_watermark_rises_with_time_and_never_beyond_what_was_synced(folder, made, monkeypatch):
    made.write(b"abc", WATERMARK_S - 0.1)
    assert _record(folder).durable_bytes == 0
    made.write(b"def", WATERMARK_S)
    assert _record(folder).durable_bytes == 6
    made.write(b"ghi", WATERMARK_S + 1)
    assert _record(folder).durable_bytes == 6


def test_the_watermark_rises_with_bytes(folder, made, monkeypatch):
    monkeypatch.setattr(partial_module, "WATERMARK_BYTES", 10)
    made.write(bytes(9), 0.0)
    assert _record(folder).durable_bytes == 0
    made.write(bytes(2), 0.0)
    assert _record(folder).durable_bytes == 11


def test_large_files_are_written_back_early(made, monkeypatch):
    begun = []
    monkeypatch.setattr(partial_module, "_find_write_back", lambda: lambda *given: begun.append(given))
    for _ in range(5):
        made.write(bytes(WRITE_BACK_BYTES // 2), 0.0)
    assert [given[1:] for given in begun] == [(0, WRITE_BACK_BYTES), (WRITE_BACK_BYTES, WRITE_BACK_BYTES)]


def test_the_kernel_takes_the_request_to_write_back(made):
    made.write(bytes(WRITE_BACK_BYTES), 0.0)
    made.sync()


def test_a_partial_file_is_gone_on_with_where_it_ends(folder, made):
    made.write(b"abcdef", 0.0)
    made.leave()
    again = _resumed(folder, 6)
    again.write(b"g", 0.0)
    assert folder.read_file(NAMES[0], 100) == b"abcdefg"
    assert _record(folder).writer == mine()
    again.close()


def test_what_is_in_doubt_is_cut_off_before_the_record_speaks_of_this_boot(folder, made):
    made.write(b"abcdef", 0.0)
    made.leave()
    again = _resumed(folder, 4)
    assert again.size_bytes == again.end_bytes == 4
    assert _record(folder).durable_bytes == 4
    again.close()


@pytest.mark.parametrize("kind", ["missing", "link", "pipe", "linked twice", "shorter"])
def test_what_is_no_plain_file_of_its_own_is_not_gone_on_with(folder, tmp_path, kind):
    target = tmp_path / "victim"
    target.write_bytes(b"0123456789")
    path = tmp_path / NAMES[0]
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "linked twice":
        os.link(target, path)
    elif kind == "shorter":
        path.write_bytes(b"01")
    assert PartialFile.resume(folder, NAMES, SIDECAR, offset=5, now_s=0.0) is None
    assert target.read_bytes() == b"0123456789"


def test_leaving_syncs_and_signs_off(folder, made):
    made.write(b"abcdef", 0.0)
    made.leave()
    assert (_record(folder).durable_bytes, _record(folder).writer) == (6, None)


def test_more_that_is_learnt_about_the_version_is_recorded(folder, made):
    before = os.stat(os.path.join(folder.path, NAMES[1])).st_ino
    made.describe(etag='"one"')
    assert os.stat(os.path.join(folder.path, NAMES[1])).st_ino == before
    made.describe(etag='"two"')
    assert _record(folder).etag == '"two"'


def test_a_file_that_another_took_the_name_of_is_not_ours(folder, made):
    assert made.is_ours()
    folder.write_file(NAMES[0], b"another's")
    assert not made.is_ours()
    made.discard()
    assert folder.read_file(NAMES[0], 100) == b"another's"
    made.leave()
    assert folder.read_file(NAMES[0], 100) == b"another's"


@pytest.mark.parametrize("change", ["gone", "damaged", "signed by another"])
def test_a_file_whose_record_is_not_signed_by_us_is_not_ours(folder, made, change):
    if change == "gone":
        folder.remove(NAMES[1])
    elif change == "damaged":
        folder.write_file(NAMES[1], b"{}")
    else:
        made.describe(writer=changed(mine(), pid=1))
    assert not made.is_ours()


def test_naming_leaves_nothing_beside(folder, made):
    made.write(b"abc", 0.0)
    made.name_it("f")
    assert folder.names() == ["f"]
    assert stat.S_IMODE(os.stat(os.path.join(folder.path, "f")).st_mode) & 0o700 == 0o600


def test_discarding_leaves_nothing(folder, made):
    made.write(b"abc", 0.0)
    made.discard()
    assert folder.names() == []


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, NoSpace), (errno.EDQUOT, NoSpace), (errno.EIO, LocalFile)])
def test_a_write_that_fails_is_told_and_keeps_what_was_written(folder, made, monkeypatch, number, kind):
    made.write(b"abc", 0.0)

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fail)
        with pytest.raises(kind):
            made.write(b"def", 0.0)
    assert made.end_bytes == 3
    assert folder.read_file(NAMES[0], 100) == b"abc"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_sync_only_what_was_synced_before_is_believed(folder, made, monkeypatch, number):
    made.write(b"abc", 0.0)
    made.mark(1.0)
    made.write(b"def", 2.0)

    def fail(_descriptor):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(BytesLost) as lost:
            made.sync()
    assert isinstance(lost.value.error, NoSpace if number == errno.ENOSPC else LocalFile)
    assert made.end_bytes == made.size_bytes == 3
    made.write(b"xyz", 3.0)
    made.sync()
    assert folder.read_file(NAMES[0], 100) == b"abcxyz"
