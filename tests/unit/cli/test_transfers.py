"""Downloads on the screen: what is said of each file, of all of them, and what is held back."""

from __future__ import annotations

from typing import Any

from stoker.cli.context import CliOutput
from stoker.cli.fetch_session import TransferLines
from stoker.cli.screens import Running, Screen
from stoker.core.events import Event, Kinds

MIB = 1 << 20


class Paper(Screen):
    """A screen that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.running: Running | None = None
        self.begun = 0

    def begin(self, running: Running) -> None:
        self.running = running
        self.begun += 1

    def lasting(self, line: str) -> None:
        self.lines.append(line)

    def close(self) -> None:
        return


class Sized(CliOutput):
    """An output on a screen of a size that a test chooses."""

    size = (0, 0)

    @property
    def columns(self) -> int:
        return self.size[0]

    @property
    def rows(self) -> int:
        return self.size[1]


class Watched:
    """Lines about some files, and the paper they go to."""

    def __init__(self, *names: str, total_bytes: int | None = None, shows_progress: bool = True) -> None:
        self.paper = Paper()
        out = Sized(is_json=False, is_quiet=False)
        out.is_unicode = False
        self.out = out
        self.lines = TransferLines(self.paper, out, shows_progress=shows_progress)
        self.lines.expect([f"org/repo: {name}" for name in names], total_bytes, within="org/repo")

    def screen(self, *, columns: int, rows: int) -> None:
        self.out.size = (columns, rows)

    def hear(self, kind: str, name: str, **fields: Any) -> None:
        self.lines.take(Event(kind, {"file": f"org/repo: {name}", **fields}), 100.0)

    def running(self, at_least_s: float = 0.0) -> list[str]:
        return self.lines.running(100.0, at_least_s)

    def ended(self) -> list[str]:
        self.lines.close()
        return self.paper.lines


def test_one_file_on_its_way_has_a_bar_a_rate_and_the_time_left() -> None:
    seen = Watched("model.gguf", total_bytes=4 * MIB)
    seen.hear(Kinds.DOWNLOAD_START, "model.gguf", start=0, total=4 * MIB)
    assert seen.running() == ["model.gguf  ....................  0 B of 4.0 MiB"]
    seen.hear(Kinds.DOWNLOAD_PROGRESS, "model.gguf", downloaded=MIB, total=4 * MIB, rate_bytes_per_s=MIB, eta_s=3.0)
    assert seen.running() == ["model.gguf  #####...............  1.0 MiB of 4.0 MiB  1.0 MiB/s  3.0s left"]


def test_many_files_also_have_a_line_for_all_of_them_which_is_the_only_one_where_lines_stay() -> None:
    seen = Watched("a", "b", "c", total_bytes=10 * MIB)
    seen.hear(Kinds.DOWNLOAD_DONE, "a", bytes=2 * MIB, ms=500, status="downloaded", bytes_from_network=2 * MIB)
    for name in ("b", "c"):
        seen.hear(Kinds.DOWNLOAD_START, name, start=0, total=4 * MIB)
        seen.hear(Kinds.DOWNLOAD_PROGRESS, name, downloaded=MIB, total=4 * MIB, rate_bytes_per_s=MIB, eta_s=3.0)
    together = "1 of 3 files  4.0 MiB of 10.0 MiB  2.0 MiB/s  3.0s left"
    assert seen.running()[0] == together.replace("files", "files  ########............")
    assert [line.split()[0] for line in seen.running()[1:]] == ["b", "c"]
    assert seen.running(5.0) == [together]
    assert seen.paper.begun == 1


def test_a_size_that_nobody_knows_is_not_guessed() -> None:
    seen = Watched("x")
    seen.hear(Kinds.DOWNLOAD_START, "x", start=0, total=None)
    seen.hear(Kinds.DOWNLOAD_PROGRESS, "x", downloaded=MIB, total=None, rate_bytes_per_s=None, eta_s=None)
    assert seen.running() == ["x  1.0 MiB"]


def test_each_end_is_a_line_that_says_what_it_cost() -> None:
    seen = Watched("a", "bb", "c", "d")
    seen.hear(Kinds.DOWNLOAD_DONE, "a", bytes=2 * MIB, ms=2000, status="downloaded", bytes_from_network=2 * MIB)
    seen.hear(
        Kinds.DOWNLOAD_DONE,
        "bb",
        bytes=3 * MIB,
        ms=1000,
        status="downloaded",
        bytes_from_network=MIB,
        bytes_resumed=2 * MIB,
    )
    seen.hear(Kinds.DOWNLOAD_DONE, "c", bytes=5, ms=1, status="cached")
    seen.hear(Kinds.DOWNLOAD_DONE, "d", bytes=5, ms=1, status="linked")
    assert seen.ended() == [
        "+ a     2.0 MiB  in 2.0s (1.0 MiB/s)",
        "+ bb    3.0 MiB  in 1.0s (1.0 MiB/s), 2.0 MiB resumed",
        "= d         5 B  on this machine",
        "= c         5 B  present",
    ]


def test_retries_waits_and_failures_say_why() -> None:
    seen = Watched("a", "b")
    seen.hear(Kinds.DOWNLOAD_RETRY, "a", msg="connection reset", wait_secs=1.5, attempt=1)
    seen.hear(Kinds.DOWNLOAD_RETRY, "a", msg="trying the next URL", wait_secs=0, attempt=1)
    seen.hear(Kinds.DOWNLOAD_WAITING, "b", msg="another process is downloading it", path="x")
    seen.hear(Kinds.DOWNLOAD_FAILED, "a", message="no such file")
    assert seen.ended() == [
        "~ a  connection reset; attempt 1, retry in 1.5s",
        "~ a  trying the next URL",
        "~ b  another process is downloading it",
        "x a  no such file",
    ]
    assert seen.running() == ["1 of 2 files  0 B", "b  another process is downloading it"]


def test_a_row_counts_down_to_the_next_attempt_where_it_is_drawn() -> None:
    seen = Watched("a")
    seen.hear(Kinds.DOWNLOAD_START, "a", start=0, total=100)
    seen.hear(Kinds.DOWNLOAD_RETRY, "a", msg="connection refused", wait_secs=12, attempt=4)
    assert seen.running() == ["a  attempt 4, retry in 12s: connection refused"]
    assert seen.lines.running(110.0, 0.0) == ["a  attempt 4, retry in 2.0s: connection refused"]
    assert seen.lines.running(110.0, 5.0) == ["a  connection refused"]


def test_a_question_that_is_asked_again_is_no_file_on_its_way() -> None:
    seen = Watched("a")
    seen.lines.take(
        Event(Kinds.DOWNLOAD_RETRY, {"file": "org/repo at main", "msg": "503", "wait_secs": 1, "attempt": 1}), 1.0
    )
    assert seen.running() == []
    assert seen.paper.lines == ["~ org/repo at main  503; attempt 1, retry in 1.0s"]


def test_of_many_quick_files_only_the_number_is_told_and_slow_ones_by_name() -> None:
    names = [f"f{number}" for number in range(100)]
    seen = Watched(*names)
    for name in names[:60]:
        seen.hear(Kinds.DOWNLOAD_DONE, name, bytes=1024, ms=3, status="downloaded", bytes_from_network=1024)
    for name in names[60:99]:
        seen.hear(Kinds.DOWNLOAD_DONE, name, bytes=1024, ms=0, status="cached")
    seen.hear(Kinds.DOWNLOAD_DONE, "f99", bytes=MIB, ms=4000, status="downloaded", bytes_from_network=MIB)
    assert seen.ended() == [
        "+ f99    1.0 MiB  in 4.0s (256.0 KiB/s)",
        "+ 60 files, 60.0 KiB",
        "= 39 files present",
    ]


def test_without_progress_only_ends_are_told() -> None:
    seen = Watched("a", shows_progress=False)
    seen.hear(Kinds.DOWNLOAD_START, "a", start=0, total=5)
    seen.hear(Kinds.DOWNLOAD_DONE, "a", bytes=5, ms=1, status="downloaded", bytes_from_network=5)
    assert seen.paper.begun == 0
    assert seen.ended() == ["+ a        5 B  in 1ms"]


def test_of_many_files_only_large_ones_under_way_have_rows_and_at_most_eight() -> None:
    names = [f"{number}.bin" for number in range(30)]
    seen = Watched(*names, total_bytes=30 * MIB)
    for name in names[:10]:
        seen.hear(Kinds.DOWNLOAD_START, name, start=0, total=MIB - 1)
    assert len(seen.running()) == 1
    for name in names[10:]:
        seen.hear(Kinds.DOWNLOAD_START, name, start=0, total=MIB)
    assert [line.split()[0] for line in seen.running()[1:]] == names[10:18]
    seen.screen(columns=80, rows=6)
    assert len(seen.running()) == 4


def test_all_files_take_at_least_as_long_as_the_slowest_of_them() -> None:
    seen = Watched("a", "b", total_bytes=20 * MIB)
    seen.hear(Kinds.DOWNLOAD_PROGRESS, "a", downloaded=9 * MIB, total=10 * MIB, rate_bytes_per_s=10 * MIB, eta_s=0.1)
    seen.hear(Kinds.DOWNLOAD_PROGRESS, "b", downloaded=MIB, total=10 * MIB, rate_bytes_per_s=MIB // 4, eta_s=36.0)
    assert seen.running(5.0) == ["0 of 2 files  10.0 MiB of 20.0 MiB  10.2 MiB/s  36s left"]


def test_a_narrow_screen_costs_the_bar_and_not_the_rate_or_the_time() -> None:
    name = "a-model-with-a-very-long-name.gguf"
    seen = Watched(name, total_bytes=4 * MIB)
    seen.hear(Kinds.DOWNLOAD_PROGRESS, name, downloaded=MIB, total=4 * MIB, rate_bytes_per_s=MIB, eta_s=3.0)
    line = ""
    for columns in (100, 75, 60, 50, 45):
        seen.screen(columns=columns, rows=24)
        (line,) = seen.running()
        assert len(line) <= columns - 5, line
        assert line.endswith("1.0 MiB/s  3.0s left")
        assert ("#" in line) == (columns > 75)
    assert line.startswith("…")
    assert "25%" in line


def test_a_colour_in_a_name_or_a_message_of_others_is_shown_and_not_obeyed() -> None:
    seen = Watched("a\x1b[31mb", total_bytes=4 * MIB)
    seen.hear(Kinds.DOWNLOAD_START, "a\x1b[31mb", start=0, total=4 * MIB)
    assert "a\\x1b[31mb" in seen.running()[0]
    seen.hear(Kinds.DOWNLOAD_RETRY, "a\x1b[31mb", msg="\x1b[32mfine", wait_secs=1)
    assert "\\x1b[32mfine" in seen.running()[0]
    seen.hear(Kinds.DOWNLOAD_FAILED, "a\x1b[31mb", message="\x1b[32mfine\nreally")
    assert all("\x1b[31m" not in line and "\x1b[32m" not in line and "\n" not in line for line in seen.ended())
    assert any("\\x1b[32mfine\\x0areally" in line for line in seen.ended())
