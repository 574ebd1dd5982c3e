"""Bytes that come, counted from what downloads say of their files."""

from __future__ import annotations

from typing import Any

from stoker.core.events import Event, Kinds
from stoker.transfer.download.download_events import counting


def said(kind: str, file: str = "a", **fields: Any) -> Event:
    return Event(kind, {"file": file, **fields})


def counted(*events: Event) -> list[int]:
    heard: list[int] = []
    hear = counting(heard.append)
    for event in events:
        hear(event)
    return heard


def test_every_byte_of_every_file_counts_once():
    assert counted(
        said(Kinds.DOWNLOAD_START, start=0),
        said(Kinds.DOWNLOAD_PROGRESS, downloaded=10),
        said(Kinds.DOWNLOAD_START, "b", start=0),
        said(Kinds.DOWNLOAD_PROGRESS, "b", downloaded=7),
        said(Kinds.DOWNLOAD_PROGRESS, downloaded=10),
        said(Kinds.DOWNLOAD_DONE, bytes=25),
        said(Kinds.DOWNLOAD_DONE, bytes=25),
    ) == [10, 7, 15]


def test_what_was_here_before_does_not_count_and_a_file_that_was_found_whole_does():
    assert counted(said(Kinds.DOWNLOAD_START, start=90), said(Kinds.DOWNLOAD_DONE, bytes=100)) == [10]
    assert counted(said(Kinds.DOWNLOAD_DONE, bytes=100)) == [100]


def test_a_file_that_begins_anew_counts_anew():
    assert counted(
        said(Kinds.DOWNLOAD_START, start=0),
        said(Kinds.DOWNLOAD_PROGRESS, downloaded=80),
        said(Kinds.DOWNLOAD_START, start=0),
        said(Kinds.DOWNLOAD_DONE, bytes=100),
    ) == [80, 100]


def test_other_news_says_nothing():
    assert counted(said(Kinds.DOWNLOAD_WAITING, downloaded=5), said(Kinds.DOWNLOAD_PROGRESS, downloaded=None)) == []
