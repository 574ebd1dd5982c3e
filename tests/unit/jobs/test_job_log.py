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
from stoker.jobs.job_log import JobLogPages, LogRange
from stoker.jobs.log_text import LogIndex
from stoker.protocol.screen_messages import LogPage


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
    return JobLogPages(HistoryCache()).read("train", folder, LogRange(**asked), is_over=True)  # type: ignore[arg-type]


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
