from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import pytest

from stoker.gang import script_gang as voices_module
from stoker.gang.script_gang import LONGEST_BYTES, RankOutput, prefixed
from tests.leaks import left_open, open_files


class Heard:
    def __init__(self) -> None:
        self.lines: list[tuple[int, bool, bytes]] = []

    def __call__(self, rank: int, lines: Sequence[bytes], *, is_error: bool) -> None:
        self.lines += [(rank, is_error, line) for line in lines]


def spoken(*pieces: bytes, log_folder: str | None = None) -> list[bytes]:
    """What is heard of pieces that come one after another."""
    heard = Heard()
    with RankOutput(1, heard, log_folder=log_folder) as voices:
        out, err = (os.dup(end) for end in voices.ends(0))
        os.close(err)
        voices.listen()
        with os.fdopen(out, "wb", buffering=0) as file:
            for piece in pieces:
                file.write(piece)
    return [line for _, _, line in heard.lines]


def test_lines_are_whole_however_they_come():
    assert spoken(b"a", b"b\nc", b"\n\nlast") == [b"ab", b"c", b"", b"last"]


def test_a_carriage_return_ends_a_line_and_one_with_a_line_end_is_one_end():
    assert spoken(b"1%\r2%\r3%", b"\r\nend\r", b"\n") == [b"1%", b"2%", b"3%", b"end"]


def test_a_line_without_end_comes_in_pieces():
    assert [len(line) for line in spoken(b"x" * (LONGEST_BYTES + 5) + b"\n")] in (
        [LONGEST_BYTES, 5],
        [LONGEST_BYTES + 5],
    )
    assert max(len(line) for line in spoken(b"x" * (3 * LONGEST_BYTES))) <= LONGEST_BYTES + (1 << 16)


def test_what_is_said_is_kept_as_it_was(tmp_path):
    spoken(b"a\r\nb\n", b"c", log_folder=str(tmp_path))
    assert (tmp_path / "rank-0.out").read_bytes() == b"a\r\nb\nc"
    assert (tmp_path / "rank-0.err").read_bytes() == b""


def test_each_rank_has_two_outputs_and_its_last_errors_are_remembered():
    heard = Heard()
    with RankOutput(2, heard) as voices:
        ends = [os.dup(end) for end in voices.ends(1)]
        voices.listen()
        os.write(ends[0], b"fine\n")
        os.write(ends[1], b"".join(b"%d\n" % number for number in range(100)))
        for end in ends:
            os.close(end)
    assert (1, False, b"fine") in heard.lines
    assert (1, True, b"99") in heard.lines
    assert voices.last_words(1) == [str(number) for number in range(70, 100)]
    assert voices.last_words(0) == []


def test_somebody_who_holds_an_output_open_is_not_waited_for():
    heard = Heard()
    with RankOutput(1, heard) as voices:
        held = os.dup(voices.ends(0)[0])
        voices.listen()
        os.write(held, b"said")
    os.close(held)
    assert heard.lines == [(0, False, b"said")]


def test_a_folder_that_is_not_there_is_told_and_nothing_stays_open(tmp_path):
    before = open_files()
    with pytest.raises(FileNotFoundError):
        RankOutput(2, Heard(), log_folder=str(tmp_path / "none"))
    assert left_open(before) == set()


def test_voices_that_were_never_heard_close_and_twice_is_fine():
    voices = RankOutput(3, Heard())
    voices.close()
    voices.close()


def test_lines_of_several_ranks_say_whose_they_are():
    assert prefixed(3, [b"a", b"b"], is_prefixed=True) == b"[rank 3] a\n[rank 3] b\n"
    assert prefixed(3, [b"a"], is_prefixed=False) == b"a\n"


def test_a_log_that_can_not_be_written_ends_there_and_is_named(tmp_path):
    (tmp_path / "rank-0.out").symlink_to("/dev/full")
    heard = Heard()
    with RankOutput(1, heard, log_folder=str(tmp_path)) as voices:
        out = os.dup(voices.ends(0)[0])
        voices.listen()
        os.write(out, b"said\n")
        os.close(out)
    assert heard.lines == [(0, False, b"said")]
    assert voices.unkept == [f"{tmp_path}/rank-0.out is not whole: No space left on device"]


def test_a_listener_who_does_not_come_back_is_not_waited_for_once_he_is_given_up(monkeypatch):
    monkeypatch.setattr(voices_module, "_LAST_WAIT_S", 0.01)
    goes_on, is_stuck = threading.Event(), threading.Event()

    def hear(*_: object, **__: object) -> None:
        is_stuck.set()
        goes_on.wait(30)

    voices = RankOutput(1, hear, is_given_up=lambda: not goes_on.is_set())
    out = os.dup(voices.ends(0)[0])
    voices.listen()
    os.write(out, b"said\n")
    assert is_stuck.wait(30)
    voices.close()
    assert not goes_on.is_set()
    goes_on.set()
    os.close(out)
    voices.close()
