"""A mirrored folder, brought here piece by piece: nothing twice, nothing elsewhere, and gone when it is closed."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any, cast

import pytest

from stoker.api.fleet_attempt import SyncedAttempt, log_files, story_files
from stoker.core.errors import BadAnswer
from stoker.protocol.client import FleetClient
from stoker.protocol.view_messages import FileList, FilePiece, FileView

JOB = "ab" * 32


class Coordinator:
    """Serves files by (path, offset), at most a few bytes at once."""

    def __init__(self, files: dict[str, bytes], *, at_once: int = 4) -> None:
        self.held = files
        self.at_once = at_once
        self.is_over = False
        self.asked: list[tuple[str, int, float]] = []

    def files(self, _ref: str, *, attempt: int | None = None) -> FileList:
        listed = tuple(FileView(path=path, size_bytes=len(data)) for path, data in self.held.items())
        return FileList(attempt=attempt or 1, files=listed, is_over=self.is_over)

    def read_file(self, _ref: str, path: str, *, offset: int, wait_s: float, **_more: object) -> FilePiece:
        self.asked.append((path, offset, wait_s))
        data = self.held.get(path, b"")[offset : offset + self.at_once]
        return FilePiece(data=data, offset=offset, attempt=1, size_bytes=0, is_over=self.is_over)


def _mirror(coordinator: Coordinator, wants: Any = log_files) -> SyncedAttempt:
    return SyncedAttempt(cast(FleetClient, coordinator), JOB, 1, wants=wants)


def test_files_arrive_whole_in_pieces_and_nothing_is_asked_for_twice():
    coordinator = Coordinator({"job.json": b"0123456789", "logs/run.log": b"abc"})
    with closing(_mirror(coordinator)) as mirror:
        assert mirror.pull()
        assert not mirror.pull()
        assert [asked[:2] for asked in coordinator.asked] == [
            ("job.json", 0),
            ("job.json", 4),
            ("job.json", 8),
            ("logs/run.log", 0),
        ]
        coordinator.held["logs/run.log"] += b"def"
        assert mirror.pull()
        with open(os.path.join(mirror.folder.log_folder, "run.log"), "rb") as log:
            assert log.read() == b"abcdef"
        assert mirror.has("job.json")


def test_waiting_is_done_on_the_file_that_grew_last():
    coordinator = Coordinator({"job.json": b"{}"})
    with closing(_mirror(coordinator)) as mirror:
        mirror.pull(wait_s=2.0)
        coordinator.held["logs/run.log"] = b"a"
        mirror.pull(wait_s=2.0)
        coordinator.held["logs/run.log"] += b"b"
        assert mirror.pull(wait_s=2.0)
    assert [(path, wait_s) for path, _, wait_s in coordinator.asked if wait_s] == [
        ("job.json", 2.0),
        ("logs/run.log", 2.0),
    ]


def test_nobody_waits_for_an_attempt_that_is_over():
    coordinator = Coordinator({"job.json": b"{}"})
    coordinator.is_over = True
    with closing(_mirror(coordinator)) as mirror:
        mirror.pull(wait_s=2.0)
        mirror.pull(wait_s=2.0)
        assert mirror.is_over
    assert not any(wait_s for _, _, wait_s in coordinator.asked)


def test_only_what_is_wanted_is_brought():
    coordinator = Coordinator({"status.jsonl": b"x", "logs/run.log": b"y", "metrics/run.bin": b"z"})
    with closing(_mirror(coordinator, story_files)) as mirror:
        mirror.pull()
        assert (mirror.has("status.jsonl"), mirror.has("logs/run.log"), mirror.has("metrics/run.bin")) == (
            True,
            False,
            False,
        )


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a//b", "a/./b", "a/../../b", ""], ids=repr)
def test_a_file_that_leads_elsewhere_is_refused(path):
    with closing(_mirror(Coordinator({path: b"x"}))) as mirror, pytest.raises(BadAnswer, match="leads elsewhere"):
        mirror.pull()


def test_nothing_is_left_when_it_is_closed():
    mirror = _mirror(Coordinator({"job.json": b"{}"}))
    mirror.pull()
    top = os.path.dirname(mirror.folder.path)
    mirror.close()
    assert not os.path.exists(top)


def test_a_coordinator_can_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.api.fleet_attempt._MOST_BYTES", 10)
    monkeypatch.setattr("stoker.api.fleet_attempt._MOST_FILES", 3)
    with closing(_mirror(Coordinator({"job.json": b"0123456789!"}))) as mirror, pytest.raises(BadAnswer, match="more"):
        mirror.pull()
    many = Coordinator({f"logs/{number}": b"" for number in range(4)})
    with closing(_mirror(many)) as mirror, pytest.raises(BadAnswer, match="4 files"):
        mirror.pull()
