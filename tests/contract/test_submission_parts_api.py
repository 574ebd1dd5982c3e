"""A manifest that goes in parts ends as it would in one, and a tree's listing is sent no faster than it is read."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.coordinator.storage.tree_storage import CoordinatorTrees
from stoker.core.clock import SystemClock
from stoker.core.errors import InvalidInput
from stoker.core.frozen import changed
from stoker.core.job import JobSpec, job_id
from stoker.protocol import job_messages
from stoker.protocol.job_messages import Submission, SubmissionOutcome
from tests.servers.coordinator import TOKEN, Fleet, coordinator

CLOCK = SystemClock()


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(job_messages, "MOST_JOBS_AT_ONCE", 2)
    path = tmp_path / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", tmp_path) as fleet:
        yield fleet


def order(name: str, lr: float = 0.1, **fields: Any) -> JobSpec:
    args = {"name": name, "lr": lr}
    id = job_id(recipe="toy", schema_version=1, args=args)
    return JobSpec(id=id, name=name, recipe="toy", args=args, identity=args, **fields)


def manifest(*jobs: JobSpec, **fields: Any) -> Submission:
    return Submission(jobs=jobs, source="m.toml", **fields)


def test_a_manifest_in_parts_ends_as_in_one(fleet: Fleet):
    client = fleet.client()
    first = manifest(order("end", after=("a", "d")), *map(order, "abcd"), key="k")
    preview = client.submit(first.model_copy(update={"key": "", "dry_run": True}))
    assert preview.counts == {"new": 5}
    assert client.jobs().jobs == ()
    done = client.submit(first)
    assert [job.name for job in done.jobs] == ["end", "a", "b", "c", "d"]
    assert done.counts == {"new": 5}
    assert set(client.job("end").after) == {"a", "d"}
    # A repeat of the same key gets the same answer.
    assert client.submit(first) == done
    changed = client.submit(manifest(order("a"), order("b", 0.2), order("d"), order("e")))
    by_name = {job.name: job for job in changed.jobs}
    assert by_name["b"].shown_outcome is SubmissionOutcome.CHANGED
    assert by_name["a"].outcome is SubmissionOutcome.KNOWN
    assert set(changed.vanished) == {"end", "c"}


def test_a_part_that_is_refused_says_what_was_submitted_before(fleet: Fleet):
    client = fleet.client()
    wrong = changed(order("c"), args={"name": "other", "lr": 1.0})
    with pytest.raises(InvalidInput) as refused:
        client.submit(manifest(order("a"), order("b"), wrong))
    assert "2 of 3 jobs were submitted; the same again submits the rest" in refused.value.hint
    assert client.submit(manifest(order("a"), order("b"), order("c"))).counts == {"known": 2, "new": 1}


class _Endless(io.RawIOBase):
    """A listing of a gigabyte that counts what is read of it."""

    size_bytes = 1 << 30
    given_bytes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        length = self.size_bytes - self.given_bytes if size < 0 else size
        self.given_bytes += length
        return b" " * min(length, 1 << 20)


def test_a_listing_is_read_no_faster_than_it_is_taken(fleet: Fleet, monkeypatch: pytest.MonkeyPatch):
    listing = _Endless()
    monkeypatch.setattr(CoordinatorTrees, "open_listing", lambda *_: (listing.size_bytes, listing))
    host, _, port = fleet.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(f"GET /v1/trees/{'0' * 64} HTTP/1.1\r\nhost: {host}\r\nx-operator-token: {TOKEN}\r\n\r\n".encode())
        assert line.recv(100).startswith(b"HTTP/1.1 200")
        before_bytes = -1
        while before_bytes != listing.given_bytes:
            before_bytes = listing.given_bytes
            CLOCK.sleep(0.2)
    # What the kernel holds of it at both ends, and a piece.
    assert 0 < listing.given_bytes < 64 << 20
