"""Mirrors of attempts' folders: they only grow, each byte once, and nothing leads out of them."""

from __future__ import annotations

import os
import threading

import pytest

from stoker.coordinator.http import run_routes
from stoker.coordinator.storage.attempt_files import END, AttemptFiles, CoordinatorStorageLimits, path_fault
from stoker.core.digests import digest_bytes
from stoker.core.errors import BadInput, Conflict, NotFound, Refused, TooLarge
from stoker.engine.metrics.metric_levels import PART_BYTES
from stoker.protocol.mirror_pieces import MirrorPiece

JOB = digest_bytes(b"a job")
OTHER = digest_bytes(b"another job")
LOG = "logs/train.log"


@pytest.fixture
def files(tmp_path):
    return AttemptFiles(str(tmp_path / "attempts"))


def content(files: AttemptFiles, path: str, attempt: int = 1) -> bytes:
    return files.read(JOB, attempt, path, 0, 1 << 30)


def test_a_file_grows_piece_by_piece(files):
    assert files.append(JOB, 1, LOG, 0, b"epoch 1\n") == 8
    assert files.append(JOB, 1, LOG, 8, b"epoch 2\n") == 16
    assert content(files, LOG) == b"epoch 1\nepoch 2\n"
    assert [(one.path, one.size_bytes) for one in files.files(JOB, 1)] == [(LOG, 16)]


def test_the_layout_is_that_of_a_job_s_folder_below_the_job_s_id(files, tmp_path):
    files.append(JOB, 2, LOG, 0, b"x")
    assert (tmp_path / "attempts" / JOB[:2] / JOB / "2" / "logs" / "train.log").read_bytes() == b"x"
    assert files.folder_of(JOB, 2) == str(tmp_path / "attempts" / JOB[:2] / JOB / "2")


@pytest.mark.parametrize("again", [(0, b"epoch 1\n"), (0, b"epo"), (3, b"ch"), (8, b""), (0, b"")], ids=str)
def test_a_piece_that_comes_again_changes_nothing(files, again):
    files.append(JOB, 1, LOG, 0, b"epoch 1\n")
    offset, data = again
    assert files.append(JOB, 1, LOG, offset, data) == 8
    assert content(files, LOG) == b"epoch 1\n"


def test_of_several_pieces_each_has_its_outcome_and_the_end_comes_after_all_others_only(files):
    first, last = MirrorPiece(LOG, 0, b"abc"), MirrorPiece(END, 0, b"{}")
    pieces = [first, MirrorPiece("a.json", 5, b"x"), MirrorPiece("../b", 0, b""), last]
    size_bytes, gap, odd, end = files.append_all(JOB, 1, pieces)
    assert size_bytes == 3
    assert isinstance(gap, Refused)
    assert gap.data["offset"] == 0
    assert isinstance(odd, BadInput)
    assert isinstance(end, Refused)
    assert [one.path for one in files.files(JOB, 1)] == [LOG]
    assert files.append_all(JOB, 1, [MirrorPiece(LOG, 3, b""), last]) == [3, 2]
    assert content(files, END) == b"{}"


def test_of_a_piece_that_is_partly_known_only_the_rest_is_added(files):
    files.append(JOB, 1, LOG, 0, b"abcd")
    assert files.append(JOB, 1, LOG, 2, b"cdef") == 6
    assert content(files, LOG) == b"abcdef"


@pytest.mark.parametrize(("offset", "data"), [(0, b"abcX"), (2, b"cX"), (1, b"X")], ids=str)
def test_other_bytes_in_the_place_of_known_ones_are_a_conflict(files, offset, data):
    files.append(JOB, 1, LOG, 0, b"abcd")
    with pytest.raises(Conflict) as caught:
        files.append(JOB, 1, LOG, offset, data)
    assert caught.value.data["offset"] == 4
    assert content(files, LOG) == b"abcd"


def test_a_gap_is_refused_with_the_right_offset_and_leaves_no_file(files):
    with pytest.raises(Refused) as caught:
        files.append(JOB, 1, LOG, 5, b"later")
    assert caught.value.data["offset"] == 0
    assert files.files(JOB, 1) == ()
    files.append(JOB, 1, LOG, 0, b"abc")
    with pytest.raises(Refused) as caught:
        files.append(JOB, 1, LOG, 5, b"later")
    assert caught.value.data["offset"] == 3


def test_an_empty_file_is_mirrored_too(files):
    assert files.append(JOB, 1, LOG, 0, b"") == 0
    assert [one.path for one in files.files(JOB, 1)] == [LOG]


def test_attempts_do_not_touch_each_other(files):
    files.append(JOB, 1, LOG, 0, b"first")
    files.append(JOB, 12, LOG, 0, b"twelfth")
    files.append(OTHER, 3, LOG, 0, b"other")
    assert files.attempts(JOB) == (1, 12)
    assert content(files, LOG, 12) == b"twelfth"
    assert set(files.jobs()) == {JOB, OTHER}


def test_a_coordinator_that_starts_anew_goes_on_where_the_files_are(files):
    files.append(JOB, 1, LOG, 0, b"before")
    again = AttemptFiles(files.folder)
    with pytest.raises(Refused) as caught:
        again.append(JOB, 1, LOG, 99, b"after")
    assert caught.value.data["offset"] == 6
    assert again.append(JOB, 1, LOG, 6, b" and after") == 16


HOSTILE = [
    "../../etc/passwd", "/etc/passwd", "logs/../../x", "logs//x", "", ".", "..", "logs/.hidden", ".stoker-tmp-1-2-ab",
    "a\0b", "a\nb", "a\\b", "a:b", "con", "logs/x ", "logs/x.", "a/b/c/d/e/f/g", "x" * 500, "logs/\u202egpj.log",
    "a*b", "a b", "logs/\ud800",
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE, ids=ascii)
def test_a_name_that_could_mean_something_else_is_refused_everywhere(files, path):
    for act in (
        lambda: files.append(JOB, 1, path, 0, b"x"),
        lambda: files.read(JOB, 1, path, 0, 1),
        lambda: files.size(JOB, 1, path),
    ):
        with pytest.raises(BadInput):
            act()
    assert not os.path.exists(files.folder)


@pytest.mark.parametrize(
    "path", ["status.jsonl", "logs/trial[3].log", "metrics/lr=0.1,x.program.skm", "metrics/a.1.control.jsonl", "é/x"]
)
def test_the_names_that_a_job_s_folder_has_are_fine(path):
    assert path_fault(path) == ""


@pytest.mark.parametrize("job", ["", "..", "../x", "7F" * 32, "7f" * 31], ids=repr)
def test_what_is_no_job_id_is_refused(files, job):
    with pytest.raises(BadInput):
        files.append(job, 1, LOG, 0, b"x")


def test_a_link_that_somebody_planted_is_not_followed(files, tmp_path):
    files.append(JOB, 1, LOG, 0, b"x")
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    os.symlink(outside, os.path.join(files.folder_of(JOB, 1), "logs", "planted.log"))
    os.symlink(tmp_path, os.path.join(files.folder_of(JOB, 1), "way"))
    for path in ("logs/planted.log", "way/outside"):
        with pytest.raises(Exception, match=r"symbolic link|not a folder"):
            AttemptFiles(files.folder).append(JOB, 1, path, 0, b"overwritten")
        with pytest.raises(NotFound):
            files.read(JOB, 1, path, 0, 10)
    assert outside.read_bytes() == b"precious"
    assert [one.path for one in files.files(JOB, 1)] == [LOG]


def test_an_attempt_has_so_many_files_and_bytes_and_no_more(tmp_path):
    files = AttemptFiles(
        str(tmp_path), limits=CoordinatorStorageLimits(attempt_files=2, attempt_bytes=10, chunk_bytes=8)
    )
    files.append(JOB, 1, "a", 0, b"12345")
    files.append(JOB, 1, "b", 0, b"12345")
    with pytest.raises(TooLarge):
        files.append(JOB, 1, "b", 5, b"6")
    with pytest.raises(TooLarge):
        files.append(JOB, 1, "c", 0, b"")
    with pytest.raises(TooLarge):
        files.append(JOB, 1, "a", 0, b"123456789")
    assert files.append(JOB, 1, "b", 0, b"12345") == 5
    assert files.append(JOB, 2, "a", 0, b"another") == 7


def test_the_end_is_whole_and_everything_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    files = AttemptFiles(str(tmp_path))
    files.append(JOB, 1, LOG, 0, b"log")
    synced: list[str] = []
    real_fsync = os.fsync

    def fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files.append(JOB, 1, "end.json", 0, b"{}")
    folder = files.folder_of(JOB, 1)
    order = [os.path.relpath(path, folder) for path in synced]
    assert order.index(LOG) < order.index("logs") < next(i for i, path in enumerate(order) if "tmp" in path)
    assert order[-4:] == [".", "..", "../..", "../../.."]
    with pytest.raises(Conflict):
        files.append(JOB, 1, "end.json", 0, b"[]")
    assert content(files, "end.json") == b"{}"


def test_reading_goes_as_far_as_the_file_does(files):
    files.append(JOB, 1, LOG, 0, b"abcdef")
    assert files.read(JOB, 1, LOG, 2, 3) == b"cde"
    assert files.read(JOB, 1, LOG, 6, 3) == b""
    assert files.read(JOB, 1, LOG, 600, 3) == b""
    assert files.size(JOB, 1, LOG) == 6
    assert files.size(JOB, 1, "logs/none.log") is None
    for path in ("logs/none.log", "logs", "nowhere/x"):
        with pytest.raises(NotFound):
            files.read(JOB, 1, path, 0, 1)
    with pytest.raises(BadInput):
        files.read(JOB, 1, LOG, -1, 1)


def test_whoever_follows_hears_of_growth(files):
    heard = []
    files.on_growth(lambda *what: heard.append(what))
    files.append(JOB, 1, LOG, 0, b"x")
    assert heard == [(JOB, 1, LOG)]


def test_levels_of_a_growing_file_are_not_read_again_for_every_piece(files, monkeypatch):
    made = []
    monkeypatch.setattr(run_routes, "series_parts", lambda path: made.append(os.stat(path).st_size // PART_BYTES))
    levels = run_routes.MirroredLevels(files)
    path = os.path.join(files.folder_of(JOB, 1), "metrics", "a.skm")
    os.makedirs(os.path.dirname(path))
    for parts in range(1, 401):
        with open(path, "ab") as file:
            file.truncate(parts * PART_BYTES)
        levels.grew(JOB, 1, "metrics/a.skm")
        levels.grew(JOB, 1, "metrics/a.skm")
    assert made[:8] == list(range(1, 9))
    assert len(made) < 60
    assert made[-1] > 400 * 8 // 9


def test_a_forgotten_attempt_is_gone_and_may_come_again(files):
    files.append(JOB, 1, LOG, 0, b"12345")
    files.append(JOB, 2, LOG, 0, b"12345")
    assert files.remove(JOB, 1) >= 5
    assert files.remove(JOB, 1) == 0
    assert files.attempts(JOB) == (2,)
    assert files.append(JOB, 1, LOG, 0, b"again") == 5
    files.remove(JOB, 1)
    files.remove(JOB, 2)
    assert list(files.jobs()) == []


def test_many_threads_that_send_the_same_pieces_make_one_file(files):
    pieces = [(at, bytes([at % 251]) * 7) for at in range(0, 700, 7)]
    barrier = threading.Barrier(4)

    def send():
        barrier.wait()
        at = 0
        while at < 700:
            at = files.append(JOB, 1, LOG, at, pieces[at // 7][1])

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert content(files, LOG) == b"".join(data for _, data in pieces)


def test_zeroes_that_a_power_cut_left_are_not_believed_and_come_again(files):
    files.append(JOB, 1, LOG, 0, b"abc" + bytes(100_000))
    files.append(JOB, 1, "metrics/a.skm", 0, bytes(5))
    files.append(JOB, 2, LOG, 0, b"abc\0")
    files.append(JOB, 2, "end.json", 0, b"{}")
    later_s = os.stat(os.path.join(files.folder_of(JOB, 1), LOG)).st_mtime + 1
    again = AttemptFiles(files.folder, booted_s=later_s)
    with pytest.raises(Refused) as caught:
        again.append(JOB, 1, LOG, 100_003, b"more")
    assert caught.value.data["offset"] == 3
    assert again.append(JOB, 1, LOG, 3, bytes(100_000) + b"more") == 100_007
    assert again.append(JOB, 1, "metrics/a.skm", 0, bytes(5)) == 5
    # An attempt that ended was durable before its end had a name.
    assert again.append(JOB, 2, LOG, 0, b"abc\0") == 4
    # In the same boot nothing is lost.
    assert AttemptFiles(files.folder, booted_s=later_s - 2).append(JOB, 1, "metrics/a.skm", 5, b"") == 5
