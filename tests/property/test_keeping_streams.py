"""Any interleaving of repeats, reorders, losses and restarts gives exactly the bytes that were written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.coordinator.storage.attempt_files import AttemptFiles
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.clock import FakeClock
from stoker.core.digests import digest_bytes
from stoker.core.errors import NoCoordinator, Refused
from stoker.core.leases import AttemptToken
from stoker.host.writers import LogFile
from stoker.transfer.mirror import AttemptFolderSync, AttemptFolderSyncSettings
from tests.fakes.fleet_line import KeptLine
from tests.lengths import examples

JOB = digest_bytes(b"a job")
TOKEN = AttemptToken(job=JOB, attempt=1, epoch=1, generation=1)
TEXT = bytes(range(256)) * 2
# Not the disk is tested here.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None

PIECE = st.tuples(st.integers(0, len(TEXT)), st.integers(0, 90))
SENDING = st.lists(st.one_of(PIECE, st.just("restart")), max_size=60)


@given(sending=SENDING)
@settings(max_examples=examples(24, 60), deadline=None)
def test_pieces_in_any_order_and_number_never_make_anything_but_a_beginning_of_the_stream(sending):
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        files = AttemptFiles(folder)
        size = 0
        for step in sending:
            if step == "restart":
                files = AttemptFiles(folder)
                continue
            offset, length = step
            data = TEXT[offset : offset + length]
            if offset > size:
                with pytest.raises(Refused) as caught:
                    files.append(JOB, 1, "logs/a.log", offset, data)
                assert caught.value.data["offset"] == size
            else:
                now = files.append(JOB, 1, "logs/a.log", offset, data)
                assert now == max(size, offset + len(data))
                size = now
            assert (files.size(JOB, 1, "logs/a.log") or 0) == size
        if size:
            assert files.read(JOB, 1, "logs/a.log", 0, 1000) == TEXT[:size]


LINE = st.binary(min_size=1, max_size=40)
NAMES = ("logs/a.log", "logs/b.log", "metrics/a.skm", "status.jsonl")
HAPPENING = st.one_of(
    st.tuples(st.sampled_from(NAMES), LINE),
    st.sampled_from(["ship", "ship", "cut", "answers lost", "mended", "coordinator restarts", "power cut", "new"]),
)


@given(happenings=st.lists(HAPPENING, max_size=50), turn_over=st.integers(20, 400))
@settings(max_examples=examples(24, 60), deadline=None)
def test_a_mirror_is_the_folder_whatever_happens_on_the_way(happenings, turn_over):
    """Logs turn over at a random size; a power cut takes the last bytes from the coordinator; the line breaks."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as top:
        world = World(Path(top), turn_over)
        for happening in happenings:
            world.happen(happening)
        world.finish()
        for name, written in world.written.items():
            assert world.mirrored(name) == written, name
        assert world.mirrored("end.json") == b"{}"


class World:
    """A folder that grows, its mirror, and the line between them."""

    def __init__(self, top: Path, turn_over: int) -> None:
        self.folder = top / "run"
        for name in ("logs", "metrics"):
            (self.folder / name).mkdir(parents=True)
        self.fleet = top / "fleet"
        self.clock = FakeClock()
        self.line = KeptLine(CoordinatorStorage(str(self.fleet), self.clock))
        self.written: dict[str, bytes] = {}
        self.logs: dict[str, LogFile] = {}
        self.turn_over = turn_over
        self.unshipped = 0
        self.mirror = self._mirror()

    def happen(self, what: object) -> None:
        match what:
            case (str(name), bytes(data)):
                self._write(name, data)
            case "ship":
                self.mirror.ship()
            case "cut":
                self.line.before = lambda _call: NoCoordinator("cut")
            case "answers lost":
                self.line.after = lambda _call: NoCoordinator("lost")
            case "mended":
                self.line.before = self.line.after = lambda _call: None
            case "coordinator restarts":
                self._restart()
            case "power cut":
                self._lose_tails()
                self._restart()
            case "new":
                # Another keeper takes the folder over: it knows nothing of what was sent. No log has turned over yet.
                if not any(path.name.endswith(".1.log") for path in (self.folder / "logs").iterdir()):
                    self.mirror.close()
                    self.mirror = self._mirror()
                    self.line.before = self.line.after = lambda _call: None
                    self.mirror.ship()

    def finish(self) -> None:
        (self.folder / "end.json").write_bytes(b"{}")
        self.line.before = self.line.after = lambda _call: None
        assert self.mirror.drain(self.clock.monotonic_s() + 60)
        assert self.mirror.troubles == ()
        for log in self.logs.values():
            log.close()

    def mirrored(self, name: str) -> bytes:
        return self.line.keeping.attempt_files.read(JOB, 1, name, 0, 1 << 20)

    def _write(self, name: str, data: bytes) -> None:
        if name.endswith(".log"):
            # What a log turns over twice without anybody looking is lost on the worker's own disk already.
            if self.unshipped + len(data) > self.turn_over:
                self.line.before = self.line.after = lambda _call: None
                while not self.mirror.ship():
                    pass
                self.unshipped = 0
            self.unshipped += len(data)
            if name not in self.logs:
                self.logs[name] = LogFile(str(self.folder / name), generation_bytes=self.turn_over)
            self.logs[name].write(data)
        else:
            with open(self.folder / name, "ab") as file:
                file.write(data)
        self.written[name] = self.written.get(name, b"") + data

    def _lose_tails(self) -> None:
        """Take from the mirror what was not durable, as far as the worker still has it."""
        for kept in self.line.keeping.attempt_files.files(JOB, 1):
            path = os.path.join(self.line.keeping.attempt_files.folder_of(JOB, 1), kept.path)
            if not kept.path.endswith(".log"):
                os.truncate(path, kept.size_bytes // 2)

    def _restart(self) -> None:
        self.line.keeping = CoordinatorStorage(str(self.fleet), self.clock)

    def _mirror(self) -> AttemptFolderSync:
        settings = AttemptFolderSyncSettings(piece_bytes=16, pieces_in_turn=2, open_files=1, longest_pause_s=0.001)
        return AttemptFolderSync(
            str(self.folder), TOKEN, self.line.client, clock=self.clock, settings=settings, chance=lambda: 0.0
        )
