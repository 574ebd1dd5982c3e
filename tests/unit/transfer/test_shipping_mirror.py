"""A folder that grows here, and what arrives there."""

from __future__ import annotations

import os
import threading

import pytest

from stoker.coordinator.storage.attempt_files import AttemptFiles, CoordinatorStorageLimits
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.clock import FakeClock, SystemClock
from stoker.core.digests import digest_bytes
from stoker.core.errors import InternalError, LocalFile, NoCoordinator, NoSpace, NotFound, StaleLease
from stoker.core.leases import AttemptToken
from stoker.host.writers import LogFile
from stoker.transfer.mirror import AttemptFolderSync, AttemptFolderSyncSettings
from tests.fakes.fleet_line import KeptLine
from tests.leaks import open_files

JOB = digest_bytes(b"a job")
TOKEN = AttemptToken(job=JOB, attempt=1, epoch=3, generation=1)


class Place:
    """A job's folder and the coordinator's keeping."""

    def __init__(self, top):
        self.run = top / "run"
        for name in ("logs", "metrics"):
            (self.run / name).mkdir(parents=True)
        self.clock = FakeClock()
        self.keeping = CoordinatorStorage(str(top / "fleet"), self.clock)
        self.line = KeptLine(self.keeping)

    def write(self, path, data):
        with open(self.run / path, "ab") as file:
            file.write(data)

    def mirror(self, **more):
        settings = AttemptFolderSyncSettings(**({"longest_pause_s": 0.01} | more))
        return AttemptFolderSync(
            str(self.run), TOKEN, self.line.client, clock=self.clock, settings=settings, chance=lambda: 0.0
        )

    def there(self, path):
        return self.keeping.attempt_files.read(JOB, 1, path, 0, 1 << 30)

    def paths(self):
        return [file.path for file in self.keeping.attempt_files.files(JOB, 1)]

    def soon(self, seconds=30.0):
        return self.clock.monotonic_s() + seconds


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    place.keeping.close()


def test_every_file_of_the_folder_arrives_as_it_is_and_the_end_arrives_last(place):
    place.write("job.json", b"{}")
    place.write("status.jsonl", b'{"kind":"run_begin"}\n')
    place.write("logs/train.log", b"epoch 1\n" * 1000)
    place.write("metrics/train.skm", bytes(range(256)))
    place.write("end.json", b'{"state":"completed"}')
    mirror = place.mirror(piece_bytes=1000)
    assert mirror.drain(place.soon())
    for path in ("job.json", "status.jsonl", "logs/train.log", "metrics/train.skm", "end.json"):
        assert place.there(path) == (place.run / path).read_bytes()
    assert [path for path, _, _ in place.line.sent][-1] == "end.json"
    order = list(dict.fromkeys(path for path, _, _ in place.line.sent))
    assert order.index("logs/train.log") < order.index("status.jsonl")
    assert max(size for _, _, size in place.line.sent) <= 1000


def test_many_files_and_the_end_come_in_one_request(place):
    for number in range(20):
        place.write(f"logs/{number}.log", b"x" * number)
    place.write("end.json", b"{}")
    assert place.mirror().drain(place.soon())
    assert place.line.calls == ["put_files"]
    assert place.there("end.json") == b"{}"


def test_a_request_holds_so_many_bytes(place):
    for number in range(6):
        place.write(f"logs/{number}.log", b"x" * 100)
    place.write("end.json", b"{}")
    assert place.mirror(piece_bytes=1000, batch_bytes=200).drain(place.soon())
    assert place.line.calls == ["put_files"] * 4


def test_the_end_waits_for_bytes_that_the_coordinator_lost(place):
    place.write("logs/a.log", b"0123456789")
    mirror = place.mirror()
    mirror.ship()
    os.unlink(os.path.join(place.keeping.attempt_files.folder_of(JOB, 1), "logs/a.log"))
    place.keeping.attempt_files = AttemptFiles(place.keeping.attempt_files.folder)
    place.write("end.json", b"{}")
    ended_with: list[bytes] = []

    def listen(_job, _attempt, path):
        if path == "end.json":
            ended_with.append(place.there("logs/a.log"))

    place.keeping.attempt_files.on_growth(listen)
    assert mirror.drain(place.soon())
    assert ended_with == [b"0123456789"]


def test_while_the_attempt_runs_its_end_is_held_back(place):
    place.write("end.json", b"{}")
    place.write("logs/a.log", b"x")
    mirror = place.mirror()
    mirror.ship()
    assert place.paths() == ["logs/a.log"]


def test_only_what_is_new_is_sent(place):
    mirror = place.mirror()
    place.write("logs/a.log", b"one\n")
    mirror.ship()
    place.write("logs/a.log", b"two\n")
    mirror.ship()
    mirror.ship()
    assert place.line.sent == [("logs/a.log", 0, 4), ("logs/a.log", 4, 4)]


def test_hidden_files_links_pipes_and_half_written_ones_stay_here(place, tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    os.symlink(tmp_path / "secret", place.run / "logs" / "a.log")
    os.symlink(tmp_path, place.run / "way")
    os.mkfifo(place.run / "metrics" / "pipe.skm")
    place.write(".stoker-tmp-1-2-3", b"x")
    place.write("status.jsonl.new", b"x")
    place.write("logs/b.log", b"x")
    assert place.mirror().drain(place.soon())
    assert place.paths() == ["logs/b.log"]


def test_one_loud_file_does_not_keep_the_others_waiting(place):
    place.write("logs/loud.log", b"x" * 10_000)
    place.write("logs/quiet.log", b"y")
    mirror = place.mirror(piece_bytes=100, pieces_in_turn=3)
    assert mirror.ship() == 0.0
    assert place.there("logs/quiet.log") == b"y"
    assert len(place.there("logs/loud.log")) == 300


def test_a_log_that_is_turned_over_goes_on_in_the_same_stream(place):
    log = LogFile(str(place.run / "logs" / "a.log"), generation_bytes=100)
    mirror = place.mirror()
    written = b""
    for number in range(50):
        line = f"line {number}\n".encode()
        log.write(line)
        written += line
        if number % 3 == 0:
            mirror.ship()
    log.close()
    assert os.path.exists(place.run / "logs" / "a.1.log")
    assert mirror.drain(place.soon())
    assert place.there("logs/a.log") == written
    assert place.paths() == ["logs/a.log"]
    assert mirror.troubles == ()


def test_what_was_written_just_before_a_log_turned_over_is_not_lost_even_if_it_turned_over_twice(place):
    path = place.run / "logs" / "a.log"
    mirror = place.mirror()
    path.write_bytes(b"first ")
    mirror.ship()
    with open(path, "ab") as file:
        file.write(b"and its rest ")
    os.replace(path, place.run / "logs" / "a.1.log")
    path.write_bytes(b"never seen ")
    os.replace(path, place.run / "logs" / "a.1.log")
    path.write_bytes(b"third")
    assert mirror.drain(place.soon())
    assert place.there("logs/a.log") == b"first and its rest third"
    # The second generation is gone from this name, and lies beside it as on the worker.
    assert place.there("logs/a.1.log") == b"never seen "


def test_a_file_that_is_cut_short_goes_on_behind_what_was_sent(place):
    mirror = place.mirror()
    place.write("metrics/a.skm", b"before")
    mirror.ship()
    (place.run / "metrics" / "a.skm").write_bytes(b"now")
    assert mirror.drain(place.soon())
    assert place.there("metrics/a.skm") == b"beforenow"


def test_hours_without_a_coordinator_cost_nothing_but_time(place):
    mirror = place.mirror()
    place.line.before = lambda _call: NoCoordinator("cut")
    for number in range(100):
        place.write("logs/a.log", b"%d\n" % number)
        assert mirror.ship() > 0
    place.line.before = lambda _call: None
    assert mirror.drain(place.soon())
    assert place.there("logs/a.log") == b"".join(b"%d\n" % number for number in range(100))


@pytest.mark.parametrize(
    "error",
    [NoCoordinator("away"), NoSpace("full there"), LocalFile("too many open files there"), InternalError("500")],
    ids=lambda one: one.code,
)
def test_a_coordinator_in_trouble_is_asked_again_after_a_growing_pause(place, error):
    place.write("logs/a.log", b"x")
    place.line.before = lambda _call: error
    settings = AttemptFolderSyncSettings(longest_pause_s=4.0)
    mirror = AttemptFolderSync(
        str(place.run), TOKEN, place.line.client, clock=place.clock, settings=settings, chance=lambda: 1.0
    )
    assert [mirror.ship() for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0]
    place.line.before = lambda _call: None
    mirror.ship()
    place.write("logs/a.log", b"y")
    place.line.before = lambda _call: error
    assert mirror.ship() == 0.2


def test_a_lost_answer_sends_a_piece_twice_and_writes_it_once(place):
    place.write("logs/a.log", b"once")
    mirror = place.mirror()
    place.line.after = lambda _call: NoCoordinator("lost")
    mirror.ship()
    place.line.after = lambda _call: None
    assert mirror.drain(place.soon())
    assert place.line.sent[:2] == [("logs/a.log", 0, 4), ("logs/a.log", 0, 4)]
    assert place.there("logs/a.log") == b"once"


def test_a_coordinator_that_lost_bytes_gets_them_again(place):
    place.write("logs/a.log", b"0123456789")
    place.write("metrics/a.skm", b"abc")
    mirror = place.mirror()
    mirror.ship()
    folder = place.keeping.attempt_files.folder_of(JOB, 1)
    os.truncate(os.path.join(folder, "logs/a.log"), 4)
    os.truncate(os.path.join(folder, "metrics/a.skm"), 0)
    place.keeping.attempt_files = AttemptFiles(place.keeping.attempt_files.folder)
    place.write("logs/a.log", b"!")
    assert mirror.drain(place.soon())
    assert place.there("logs/a.log") == b"0123456789!"
    assert place.there("metrics/a.skm") == b"abc"


@pytest.mark.parametrize("error", [StaleLease("not yours"), NotFound("no such job")], ids=lambda one: one.code)
def test_a_token_that_does_not_count_any_more_ends_it_for_good(place, error):
    place.write("logs/a.log", b"x")
    mirror = place.mirror()
    place.line.before = lambda _call: error
    mirror.ship()
    assert mirror.ended_by is error
    place.line.before = lambda _call: None
    assert not mirror.drain(place.soon())
    assert place.line.calls == ["put_files"]
    assert place.paths() == []


def test_a_file_that_goes_beyond_the_limits_is_told_and_does_not_stop_the_rest(place):
    limits = CoordinatorStorageLimits(attempt_bytes=10)
    place.keeping.attempt_files = AttemptFiles(place.keeping.attempt_files.folder, limits=limits)
    place.write("logs/a.log", b"123456789")
    place.write("logs/b.log", b"12345")
    place.write("end.json", b"{")
    mirror = place.mirror()
    assert mirror.drain(place.soon())
    assert [trouble.partition(":")[0] for trouble in mirror.troubles] == ["logs/b.log"]
    assert place.paths() == ["end.json", "logs/a.log"]


def test_a_file_that_was_written_over_is_told_and_what_came_first_stays(place):
    place.keeping.append(JOB, 1, "config.json", 0, b"first")
    place.write("config.json", b"other")
    mirror = place.mirror()
    assert mirror.drain(place.soon())
    assert "other bytes" in mirror.troubles[0]
    assert place.there("config.json") == b"first"


def test_draining_gives_up_at_its_deadline_and_may_be_tried_again(place):
    place.write("logs/a.log", b"x")
    mirror = place.mirror()

    def cut(_call):
        place.clock.advance(1.0)
        return NoCoordinator("cut")

    place.line.before = cut
    assert not mirror.drain(place.soon(5.0))
    assert len(place.line.calls) == 5
    place.line.before = lambda _call: None
    assert mirror.drain(place.soon())
    assert place.there("logs/a.log") == b"x"


def test_more_files_than_may_be_open_are_mirrored_all_the_same(place):
    for number in range(20):
        place.write(f"logs/{number:02}.log", b"a")
    mirror = place.mirror(open_files=3)
    mirror.ship()

    def held() -> int:
        # Only those of this job: whatever else this process has open comes and goes.
        return sum(link.startswith(str(place.run)) for _, link in open_files())

    before = held()
    for number in range(20):
        place.write(f"logs/{number:02}.log", b"b")
    mirror.ship()
    assert held() <= before
    assert {place.there(f"logs/{number:02}.log") for number in range(20)} == {b"ab"}
    assert mirror.drain(place.soon())


def test_in_a_thread_it_ships_while_others_write_and_drains_when_they_are_done(place):
    arrived = threading.Event()
    place.keeping.attempt_files.on_growth(lambda *_: arrived.set())
    settings = AttemptFolderSyncSettings(every_s=0.01)
    mirror = AttemptFolderSync(str(place.run), TOKEN, place.line.client, clock=SystemClock(), settings=settings)
    mirror.begin()
    place.write("logs/a.log", b"live")
    assert arrived.wait(30)
    place.write("logs/a.log", b" and last")
    place.write("end.json", b"{}")
    assert mirror.drain(SystemClock().monotonic_s() + 30)
    assert place.there("logs/a.log") == b"live and last"
    assert place.there("end.json") == b"{}"
