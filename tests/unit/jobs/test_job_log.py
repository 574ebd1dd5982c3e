from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest

from stoker.core.errors import NotFound
from stoker.core.jsontext import dumps
from stoker.jobs import log_text
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.job_history import HistoryCache
from stoker.jobs.job_log import JobLogPages
from stoker.jobs.log_text import LogIndex
from stoker.protocol.screen_messages import LogPage, LogRequest


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    (tmp_path / "logs").mkdir()
    return JobFolder(str(tmp_path))


def put(folder: JobFolder, node: str, text: str | bytes) -> None:
    Path(folder.log_folder, f"{node}.log").write_bytes(text.encode() if isinstance(text, str) else text)


def said(folder: JobFolder, *nodes: str) -> None:
    lines = [dumps({"kind": "stage_begin", "node": node, "ts": 1.0}) for node in nodes]
    Path(folder.status_path).write_text("".join(f"{line}\n" for line in lines))


def read(folder: JobFolder, **asked: object) -> LogPage:
    return JobLogPages(HistoryCache()).read("train", folder, LogRequest(**asked), is_over=True)  # type: ignore[arg-type]


def texts(log: LogPage) -> list[str]:
    return [one.text for one in log.lines]


def numbers(log: LogPage) -> list[int]:
    return [one.number for one in log.lines]


def test_the_last_lines_come_first_and_others_by_number(folder: JobFolder) -> None:
    put(folder, "train", "".join(f"line {at}\n" for at in range(1000)))
    last = read(folder, limit=3)
    assert texts(last) == ["line 997", "line 998", "line 999"]
    assert (numbers(last), last.total, last.nodes) == ([997, 998, 999], 1000, ("train",))
    assert texts(read(folder, start=10, limit=2)) == ["line 10", "line 11"]
    assert texts(read(folder, start=1000)) == []
    assert texts(read(folder, start=5_000_000)) == []


def test_stages_follow_each_other_in_the_order_of_the_journal(folder: JobFolder) -> None:
    said(folder, "prepare", "a/b")
    put(folder, "a_b", "second\nrest without an end")
    put(folder, "prepare", "first\n")
    put(folder, "preparing", "beside\n")
    found = read(folder)
    assert [(one.node, one.text) for one in found.lines] == [
        ("prepare", "first"),
        ("a/b", "second"),
        ("a/b", "rest without an end"),
        ("preparing", "beside"),
    ]
    assert numbers(found) == [0, 1, 2, 3]
    assert found.nodes == ("prepare", "a/b", "preparing")
    only = read(folder, node="a/b", start=1)
    assert (texts(only), only.total) == (["rest without an end"], 2)
    with pytest.raises(NotFound, match="no stage 'prepar'"):
        read(folder, node="prepar")


def test_lines_that_stages_logged_to_the_journal_come_before_their_output(folder: JobFolder) -> None:
    events = [{"kind": "stage_log", "node": "fit[0]", "text": "hello"}, {"kind": "stage_begin", "node": "fit[0]"}]
    Path(folder.status_path).write_text("".join(f"{dumps(one)}\n" for one in events))
    put(folder, "fit[0]", "printed\n")
    assert [(one.node, one.text) for one in read(folder, node="fit").lines] == [
        ("fit[0]", "hello"),
        ("fit[0]", "printed"),
    ]
    assert texts(read(folder, search="HELL")) == ["hello"]


def test_an_older_generation_of_a_log_comes_before_it(folder: JobFolder) -> None:
    put(folder, "train.1", "old\n")
    put(folder, "train", "new\n")
    found = read(folder)
    assert (texts(found), found.nodes) == (["old", "new"], ("train",))


def test_control_codes_are_shown_and_colours_removed(folder: JobFolder) -> None:
    put(folder, "train", b"\x1b[31mred\x1b[0m\x07\t<b>\n\x1b]0;title\x07x\xff\n1%\r50%\r100%\ndos\r\n\n\x9bq\n")
    assert texts(read(folder)) == ["red\\x07\t<b>", "x\\xff", "100%", "dos", "", "\\x9bq"]


def test_a_huge_line_is_cut_and_costs_no_memory(folder: JobFolder) -> None:
    path = Path(folder.log_folder, "train.log")
    with path.open("wb") as file:
        file.write(b"before\n")
        for _ in range(12):
            file.write(b"x" * (1 << 20))
        file.write("é needle\n".encode())
        file.write(b"after\n")
    tracemalloc.start()
    found = read(folder, limit=3)
    match = read(folder, search="NEEDLE")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [(len(one.text), one.is_cut) for one in found.lines] == [(6, False), (4096, True), (5, False)]
    assert (numbers(match), match.matches, match.lines[0].is_cut) == ([1], 1, True)
    assert peak_bytes < 8 << 20


def test_a_cut_goes_through_no_character(folder: JobFolder) -> None:
    put(folder, "train", "é" * 5000 + "\n" + "x" + "é" * 5000)
    assert [one.text.strip("é") for one in read(folder).lines] == ["", "x"]


def test_a_search_counts_all_and_returns_some(folder: JobFolder) -> None:
    put(folder, "train", "".join(f"{'Error' if at % 10 == 0 else 'fine'} {at}\n" for at in range(1000)))
    found = read(folder, search="eRRor", limit=2)
    assert (texts(found), found.matches) == (["Error 980", "Error 990"], 100)
    later = read(folder, search="error", start=501, limit=2)
    assert (numbers(later), later.matches) == ([510, 520], 100)
    assert read(folder, search="missing").matches == 0


def _blocks(folder: JobFolder, sizes: Iterable[int]) -> list[bytes]:
    lines = [bytes([97 + at % 26]) * size for at, size in enumerate(sizes)]
    put(folder, "train", b"".join(line + b"\n" for line in lines))
    return lines


@pytest.mark.parametrize("block_bytes", [7, 16, 64])
def test_lines_across_blocks_are_whole_and_found(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(log_text, "BLOCK_BYTES", block_bytes)
    lines = _blocks(folder, [0, 3, 50, 1, 0, 0, 17, 6, 7, 8, 15, 16, 2, 64, 5])
    index = LogIndex()
    path = str(Path(folder.log_folder, "train.log"))
    for start in range(len(lines) + 1):
        log = index.log(path)
        assert log.total == len(lines)
        assert [one.text.encode() for one in log.lines(start, start + 4)] == lines[start : start + 4]
    assert [one.number for one in index.log(path).search(b"ccc")] == [2]
    with open(path, "ab") as file:
        file.write(b"more\nand")
    grown = index.log(path)
    assert [one.text for one in grown.lines(len(lines), 99)] == ["more", "and"]
    Path(path).write_bytes(b"begun again\n")
    assert [one.text for one in index.log(path).lines(0, 99)] == ["begun again"]


class Follower:
    """A client that asks for what follows the page before, of a job that runs."""

    def __init__(self, folder: JobFolder, pages: JobLogPages, node: str = "") -> None:
        self.folder = folder
        self.pages = pages
        self.node = node
        self.seen: list[tuple[int, str, str]] = []
        self.after = ""
        self.last = LogPage(job="train")

    def look(self, limit: int = 500, *, is_over: bool = False) -> list[str]:
        asked = LogRequest(node=self.node, after=self.after, limit=limit)
        self.last = page = self.pages.read("train", self.folder, asked, is_over=is_over)
        if page.is_anew:
            self.seen = []
        self.seen += [(one.number, one.node, one.text) for one in page.lines]
        self.after = page.next
        return texts(page)


def add(folder: JobFolder, node: str, text: str) -> None:
    with Path(folder.log_folder, f"{node}.log").open("a") as file:
        file.write(text)


def logged(folder: JobFolder, node: str, *lines: str) -> None:
    with Path(folder.status_path).open("a") as file:
        file.writelines(f"{dumps({'kind': 'stage_log', 'node': node, 'text': text})}\n" for text in lines)


def test_lines_keep_their_numbers_while_several_logs_grow(folder: JobFolder) -> None:
    pages = JobLogPages(HistoryCache())
    said(folder, "prepare", "train")
    logged(folder, "prepare", "begun")
    put(folder, "prepare", "p0\n")
    put(folder, "train", "t0\n")
    everybody, alone = Follower(folder, pages), Follower(folder, pages, "train")
    assert everybody.look() == ["begun", "p0", "t0"]
    assert alone.look() == ["t0"]
    logged(folder, "train", "said")
    add(folder, "prepare", "p1\n")
    add(folder, "train", "t1\nt2\n")
    assert everybody.look() == ["said", "p1", "t1", "t2"]
    assert alone.look() == ["said", "t1", "t2"]
    add(folder, "prepare", "p2\n")
    put(folder, "later", "l0\n")
    assert everybody.look(1) == ["p2"]
    assert everybody.look() == ["l0"]
    assert everybody.look() == alone.look() == []
    whole = pages.read("train", folder, LogRequest(), is_over=False)
    assert [(one.number, one.node, one.text) for one in whole.lines] == everybody.seen, "whoever looks, and whenever"
    assert [number for number, _, _ in everybody.seen] == list(range(9))
    assert numbers(pages.read("train", folder, LogRequest(search="p"), is_over=False)) == [1, 4, 7]
    assert texts(pages.read("train", folder, LogRequest(start=3, limit=2), is_over=False)) == ["said", "p1"]


def test_a_line_without_an_end_is_shown_until_it_has_one(folder: JobFolder) -> None:
    one = Follower(folder, JobLogPages(HistoryCache()))
    put(folder, "train", "first\n10%\r20%")
    put(folder, "other", "x\n")
    assert one.look() == ["x", "first"]
    assert [(line.number, line.node, line.text) for line in one.last.unfinished] == [(2, "train", "20%")]
    add(folder, "train", "\r90%")
    add(folder, "other", "y\n")
    assert one.look() == ["y"]
    assert [line.text for line in one.last.unfinished] == ["90%"]
    add(folder, "train", " done\nrest")
    assert one.look() == ["90% done"]
    assert one.look(is_over=True) == ["rest"]
    assert (one.last.unfinished, one.last.total) == ((), 5)


def test_a_log_that_is_begun_anew_is_numbered_anew(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Follower(folder, JobLogPages(HistoryCache()))
    put(folder, "train", "a\nb\nc\n")
    one.look()
    put(folder, "train", "d\n")
    assert one.look() == ["d"]
    assert (one.last.is_anew, one.seen) == (True, [(0, "train", "d")])
    # An older generation, as a log that is full becomes.
    Path(folder.log_folder, "train.log").rename(Path(folder.log_folder, "train.1.log"))
    put(folder, "train", "e\nf\n")
    assert one.look() == ["d", "e", "f"]
    assert one.last.is_anew
    add(folder, "train", "g\n")
    again = Follower(folder, JobLogPages(HistoryCache()))
    again.after = one.after
    assert again.look() == ["d", "e", "f", "g"], "another process does not know the order, and says so"
    assert again.last.is_anew
    monkeypatch.setattr("stoker.jobs.log_order.MOST_SPANS", 3)
    for _ in range(3):
        for node in ("train", "other"):
            add(folder, node, "h\n")
            again.look()
    assert len(again.seen) == 10
    assert [number for number, _, _ in again.seen] == list(range(10))


def test_lines_that_the_journal_has_dropped_leave_their_numbers_free(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.jobs.job_history._MOST_LOGGED", 4)
    one = Follower(folder, JobLogPages(HistoryCache()))
    logged(folder, "a", "0", "1")
    logged(folder, "b", "2", "3")
    assert one.look() == ["0", "1", "2", "3"]
    logged(folder, "a", "4", "5", "6")
    assert one.look() == ["4", "5", "6"]
    page = one.pages.read("train", folder, LogRequest(), is_over=False)
    assert list(zip(numbers(page), texts(page), strict=True)) == [(3, "3"), (4, "4"), (5, "5"), (6, "6")]
    assert page.note == "3 older lines of the journal are not shown"
    logged(folder, "b", *map(str, range(7, 17)))
    assert one.look() == ["13", "14", "15", "16"]


@pytest.mark.parametrize("after", ["x", "-", "0-0", "-3", "é-1", "a" * 12 + "-" + "9" * 40])
def test_a_foreign_place_is_answered_by_the_last_lines(folder: JobFolder, after: str) -> None:
    put(folder, "train", "a\nb\n")
    found = read(folder, after=after)
    assert (texts(found), found.is_anew) == (["a", "b"], True)
