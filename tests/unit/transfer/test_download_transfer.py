from __future__ import annotations

import errno
import os
import threading

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import Digest
from stoker.core.errors import (
    AuthRefused,
    BadAnswer,
    Cancelled,
    HashMismatch,
    NetworkFailed,
    NoSpace,
    NotOnServer,
    RateLimited,
    Terminated,
)
from stoker.core.frozen import changed
from stoker.host import writers
from stoker.host.http.exchange import Request
from stoker.host.identity import mine
from stoker.host.locks import FileLock
from stoker.host.resources import SPARE_BYTES
from stoker.transfer.download import content, download
from stoker.transfer.download.partial import Sidecar, dump_sidecar, load_sidecar
from stoker.transfer.download.types import DownloadTimeouts, Status
from tests.fakes.transport import Scripted
from tests.unit.transfer.download_scene import ETAG, HALF, LARGE, SMALL, URL, open_scene, served


@pytest.fixture(params=["through the cache", "past the cache"])
def scene(request, tmp_path, monkeypatch):
    # A large file here comes in three pieces.
    monkeypatch.setattr(download, "PIECE_BYTES", 1 << 20)
    if request.param == "past the cache":
        monkeypatch.setattr(content, "DIRECT_BYTES", 0)
        monkeypatch.setattr(writers, "BLOCK_BYTES", 64 * 1024)
    with open_scene(tmp_path) as opened:
        yield opened


def test_what_was_cut_off_is_gone_on_with_in_the_same_run(scene):
    scene.script(scene.cut(HALF))
    fetched = scene.fetch()
    assert scene.asked() == ["GET", f"GET bytes={HALF}-"]
    assert scene.transport.requests[1].headers["If-Range"] == ETAG
    assert (fetched.bytes_from_network, fetched.bytes_resumed) == (len(LARGE), 0)
    retry = scene.told("retry")[0]
    assert (retry["wait_secs"], retry["reason"], retry["attempt"]) == (0.75, "short_body", 1)


@pytest.mark.parametrize("is_known", [True, False])
def test_what_was_cut_off_is_gone_on_with_in_another_run(scene, is_known):
    wanted = scene.exact() if is_known else scene.bare()
    scene.interrupt(wanted)
    record = load_sidecar(scene.beside(".part.json").read_bytes())
    assert isinstance(record, Sidecar)
    assert (record.url, record.size_bytes, record.etag) == ("https://host/models/file", len(LARGE), ETAG)
    assert (record.durable_bytes, record.boot_id, record.writer) == (HALF, mine().boot_id, None)
    fetched = scene.fetch(wanted)
    assert scene.path.read_bytes() == LARGE
    assert scene.asked() == [f"GET bytes={HALF}-"]
    assert (fetched.bytes_from_network, fetched.bytes_resumed) == (len(LARGE) - HALF, HALF)
    start = scene.told("start")[0]
    assert (start["resume"], start["start"], start["total"]) == (True, HALF, len(LARGE))


def test_a_whole_partial_file_needs_no_request(scene):
    scene.interrupt()
    with scene.beside(".part").open("ab") as file:
        file.write(LARGE[HALF:])
    fetched = scene.fetch()
    assert scene.asked() == []
    assert fetched.bytes_resumed == len(LARGE)


@pytest.mark.parametrize("kind", ["missing", "damaged", "foreign", "of another version"])
def test_a_partial_file_without_a_record_of_its_version_is_begun_anew(scene, kind):
    scene.interrupt()
    sidecar = scene.beside(".part.json")
    if kind == "missing":
        sidecar.unlink()
    elif kind == "damaged":
        sidecar.write_bytes(sidecar.read_bytes()[:-20])
    elif kind == "foreign":
        sidecar.write_text('{"version": 3}')
    else:
        sidecar.write_bytes(dump_sidecar(Sidecar(url="", size_bytes=len(LARGE), sha256="f" * 64)))
    fetched = scene.fetch()
    assert scene.asked() == ["GET"]
    assert fetched.bytes_resumed == 0
    assert scene.told("retry")[0]["reason"] == "restart"


def test_after_a_power_cut_the_unsynced_end_is_fetched_again(scene):
    scene.interrupt()
    sidecar = scene.beside(".part.json")
    record = load_sidecar(sidecar.read_bytes())
    assert isinstance(record, Sidecar)
    sidecar.write_bytes(dump_sidecar(changed(record, durable_bytes=1_000_000, boot_id="an earlier one")))
    part = scene.beside(".part")
    part.write_bytes(LARGE[:1_000_000] + bytes(HALF - 1_000_000))
    fetched = scene.fetch()
    assert scene.asked() == ["GET bytes=1000000-"]
    assert fetched.bytes_resumed == 1_000_000


def test_a_server_without_ranges_is_taken_from_the_start_on_the_same_answer(scene):
    scene.interrupt()
    scene.transport.script = lambda request: served(changed(request, headers={}), LARGE, '"two"')
    assert scene.fetch().bytes_resumed == 0
    assert scene.asked() == [f"GET bytes={HALF}-"]
    assert scene.told("retry")[0]["msg"] == "starting over: the file has changed on the server"


def test_a_server_that_dislikes_conditions_is_asked_plainly_once(scene):
    scene.interrupt()
    scene.transport.script = lambda request: served(
        changed(request, headers={} if "If-Range" in request.headers else request.headers), LARGE
    )
    assert scene.fetch().bytes_resumed == HALF
    assert scene.asked() == [f"GET bytes={HALF}-"] * 2
    assert "If-Range" not in scene.transport.requests[1].headers


def test_a_misplaced_part_is_never_added(scene):
    scene.interrupt(scene.bare())
    shifted = Scripted(
        status=206,
        fields=(("Content-Range", f"bytes {HALF - 10}-{len(LARGE) - 1}/{len(LARGE)}"),),
        body=LARGE[HALF - 10 :],
    )
    scene.script(shifted)
    assert scene.fetch(scene.bare()).bytes_resumed == 0
    assert scene.asked() == [f"GET bytes={HALF}-", "GET"]
    assert scene.path.read_bytes() == LARGE


def test_a_new_version_of_the_same_size_is_never_mixed_in(scene):
    scene.interrupt(scene.bare())
    newer = LARGE[::-1]
    scene.transport.script = lambda request: served(request, newer, '"two"')
    scene.fetch(scene.bare())
    assert scene.path.read_bytes() == newer


def test_wrong_bytes_of_an_earlier_run_cost_one_fetch_from_the_start(scene):
    scene.interrupt()
    part = scene.beside(".part")
    part.write_bytes(b"?" + LARGE[1:HALF])
    fetched = scene.fetch()
    assert scene.path.read_bytes() == LARGE
    assert scene.asked() == [f"GET bytes={HALF}-", "GET"]
    assert fetched.bytes_resumed == 0
    assert "bytes of several responses do not match" in str(scene.told("retry")[0]["msg"])


@pytest.mark.parametrize("data", [LARGE, SMALL], ids=["large", "small"])
def test_wrong_bytes_in_one_piece_are_refused_and_not_kept(scene, data):
    scene.data = data
    wanted = scene.exact()
    scene.data = data[:-1] + b"?"
    with pytest.raises(HashMismatch) as refused:
        scene.fetch(wanted)
    assert refused.value.exit_code == 13
    assert scene.names() == []
    assert scene.asked() == ["GET"]


def test_wrong_bytes_leave_a_file_that_was_there_as_it_was(scene):
    scene.fetch()
    wanted = changed(scene.exact(), sha256=Digest("0" * 64))
    with pytest.raises(HashMismatch):
        scene.fetch(wanted)
    assert scene.path.read_bytes() == LARGE


def test_wrong_bytes_twice_are_refused(scene):
    wanted = scene.exact()
    scene.interrupt(wanted)
    scene.data = LARGE[:-1] + b"?"
    with pytest.raises(HashMismatch):
        scene.fetch(wanted)
    assert scene.asked() == [f"GET bytes={HALF}-", "GET"]
    assert scene.names() == []


def test_an_error_page_in_place_of_the_file_keeps_what_is_there(scene):
    scene.interrupt()
    scene.transport.script = lambda _: Scripted(body=b"please log in")
    with pytest.raises(HashMismatch, match="13 bytes"):
        scene.fetch()
    assert scene.beside(".part").stat().st_size == HALF
    scene.script()
    assert scene.fetch().bytes_resumed == HALF


def test_an_encoded_body_is_tried_again_and_then_refused(scene):
    scene.transport.script = lambda _: Scripted(fields=(("Content-Encoding", "gzip"),), body=b"zipped")
    with pytest.raises(BadAnswer):
        scene.fetch(scene.bare())
    assert len(scene.transport.requests) == 3
    assert scene.names() == []


def test_more_bytes_than_announced_are_refused(scene):
    whole = Scripted(fields=(("ETag", ETAG),), body=LARGE + b"!", is_without_length=True)
    scene.transport.script = lambda request: whole if request.method == "GET" else Scripted(status=405)
    with pytest.raises(HashMismatch, match="more than"):
        scene.fetch()
    assert scene.names() == []


def test_a_size_that_the_body_does_not_tell_is_asked_for(scene):
    head = served(Request(url=URL, method="HEAD", headers={}), LARGE)
    unsized = Scripted(fields=(("ETag", ETAG),), body=LARGE[:HALF], is_without_length=True)
    scene.script(unsized, head)
    scene.fetch(scene.bare())
    assert scene.asked() == ["GET", "HEAD", f"GET bytes={HALF}-"]
    assert scene.path.read_bytes() == LARGE


def test_a_server_that_refuses_head_is_asked_for_its_first_byte(scene):
    unsized = Scripted(fields=(("ETag", ETAG),), body=LARGE[:HALF], is_without_length=True)
    first = Scripted(status=206, fields=(("Content-Range", f"bytes 0-0/{len(LARGE)}"),), body=LARGE[:1])
    scene.script(unsized, Scripted(status=405), first)
    scene.fetch(scene.bare())
    assert scene.asked() == ["GET", "HEAD", "GET bytes=0-0", f"GET bytes={HALF}-"]


def test_a_body_whose_size_nobody_tells_is_taken_to_its_end(scene):
    unsized = Scripted(fields=(("ETag", ETAG),), body=LARGE, is_without_length=True)
    scene.script(unsized, Scripted(status=405), Scripted(status=405))
    scene.fetch(scene.bare())
    assert scene.path.read_bytes() == LARGE
    assert scene.told("start")[0]["total"] is None


@pytest.mark.parametrize("data", [LARGE, SMALL])
def test_f30_bytes_after_the_announced_end_are_no_matter_where_a_digest_decides(scene, data):
    scene.data = data
    scene.script(_overlong(data))
    scene.fetch(scene.exact())
    assert scene.path.read_bytes() == data
    assert len(scene.asked()) == 1


@pytest.mark.parametrize("data", [LARGE, SMALL])
def test_f30_bytes_after_the_announced_end_are_never_a_whole_file_without_a_digest(scene, data):
    scene.script(*[_overlong(data)] * 3)
    with pytest.raises(BadAnswer) as refused:
        scene.fetch(scene.bare())
    assert refused.value.data["reason"] == "long_body"
    assert len(scene.asked()) == 3
    assert scene.names() == []
    scene.data = data
    scene.fetch(scene.bare())
    assert scene.path.read_bytes() == data


def test_f30_what_was_gone_on_with_is_in_doubt_as_well(scene):
    scene.interrupt(scene.bare())
    span = ("Content-Range", f"bytes {HALF}-{len(LARGE) - 1}/{len(LARGE)}")
    length = ("Content-Length", str(len(LARGE) - HALF))
    scene.script(Scripted(status=206, fields=(("ETag", ETAG), span, length), body=LARGE[HALF:] + b"more"))
    scene.fetch(scene.bare())
    assert scene.asked()[-2:] == [f"GET bytes={HALF}-", "GET"]
    assert scene.path.read_bytes() == LARGE


def _overlong(data: bytes) -> Scripted:
    return Scripted(fields=(("ETag", ETAG), ("Content-Length", str(len(data)))), body=data + b"more")


@pytest.mark.parametrize("at", [HALF, 0])
def test_a_disk_without_room_is_left_alone(scene, at):
    if at:
        scene.interrupt()
    needed = len(LARGE) - at + SPARE_BYTES
    scene.free_bytes = needed - 1
    with pytest.raises(NoSpace) as full:
        scene.fetch()
    assert (full.value.data["needed_bytes"], full.value.data["free_bytes"]) == (needed, needed - 1)
    assert full.value.exit_code == 10
    assert scene.names() == (["f.bin.part", "f.bin.part.json"] if at else [])
    scene.free_bytes = needed
    scene.fetch()


def test_room_is_checked_again_for_a_new_start(scene):
    scene.interrupt()
    scene.transport.script = lambda request: served(changed(request, headers={}), LARGE, '"two"')
    # What the old partial file takes is free once it is thrown away.
    scene.free_bytes = len(LARGE) + SPARE_BYTES - scene.beside(".part").stat().st_blocks * 512
    scene.free_bytes -= 1
    with pytest.raises(NoSpace):
        scene.fetch()
    assert scene.beside(".part").stat().st_size == HALF
    scene.free_bytes += 1
    scene.fetch()


def test_only_attempts_without_progress_count(scene):
    cuts = [scene.cut(100_000) for _ in range(25)]
    scene.script(*cuts)
    assert scene.fetch().bytes_from_network == len(LARGE)
    assert len(scene.told("retry")) == 25


def test_attempts_without_progress_end_it_and_keep_what_is_there(scene):
    scene.script(scene.cut(HALF), *[TimeoutError() for _ in range(3)])
    with pytest.raises(NetworkFailed):
        scene.fetch()
    assert len(scene.transport.requests) == 4
    assert scene.beside(".part").stat().st_size == HALF


def test_a_server_that_never_gets_beyond_the_same_byte_is_given_up(scene):
    scene.transport.script = lambda request: served(changed(request, headers={}), LARGE, cut=HALF)
    with pytest.raises(NetworkFailed):
        scene.fetch(scene.bare())
    assert len(scene.transport.requests) < 10


def test_waiting_is_obeyed_and_given_up_as_rate_limited(scene):
    scene.transport.script = lambda _: Scripted(status=429, fields=(("Retry-After", "30"),))
    with pytest.raises(RateLimited) as limited:
        scene.fetch()
    assert limited.value.exit_code == 12
    assert scene.clock.monotonic_s() == pytest.approx(60.0)
    assert [retry["wait_secs"] for retry in scene.told("retry")] == [30.0, 30.0]


def test_a_longer_wait_than_anybody_has_patience_for_is_not_begun(scene):
    scene.transport.script = lambda _: Scripted(status=503, fields=(("Retry-After", "3000"),))
    with pytest.raises(NetworkFailed, match="the server requests a pause of 50m"):
        scene.fetch()
    assert scene.clock.monotonic_s() == 0.0


def test_a_link_that_ran_out_is_asked_for_anew_at_the_first_address(scene):
    links = iter(["https://cdn/one?signature=old", "https://cdn/two?signature=new"])

    def answer(request):
        if request.url.startswith("https://host/"):
            return Scripted(status=302, fields=(("Location", next(links)),))
        return Scripted(status=403) if "old" in request.url else served(request, LARGE)

    scene.transport.script = answer
    wanted = changed(scene.exact(), headers={"Authorization": "Bearer secret"})
    scene.fetch(wanted)
    hosts = [request.url.split("/")[2] for request in scene.transport.requests]
    assert hosts == ["host", "cdn", "host", "cdn"]
    assert ["Authorization" in request.headers for request in scene.transport.requests] == [True, False, True, False]


@pytest.mark.parametrize(
    ("status", "kind"), [(401, AuthRefused), (403, AuthRefused), (404, NotOnServer), (400, BadAnswer)]
)
def test_a_refusal_is_not_argued_with(scene, status, kind):
    scene.transport.script = lambda _: Scripted(status=status)
    with pytest.raises(kind):
        scene.fetch()
    assert len(scene.transport.requests) == 1


def test_a_connection_that_is_too_slow_is_made_anew(scene):
    class SlowClock(FakeClock):
        def monotonic_s(self):
            self.advance(30.0)
            return super().monotonic_s()

    scene.clock = SlowClock()
    patience = DownloadTimeouts(slow_bytes_per_s=10**6, slow_s=60.0, no_progress_s=10**6)
    scene.fetch(patience=patience)
    assert "too_slow" in [retry["reason"] for retry in scene.told("retry")]
    assert scene.path.read_bytes() == LARGE


@pytest.mark.parametrize("error", [Cancelled("interrupted"), Terminated("terminated")])
def test_asking_to_stop_keeps_what_is_there_and_lets_go_of_the_lock(scene, error):
    def ask(step):
        if step == "write" and scene.steps.count("write") == 2:
            scene.stop.ask(error)

    scene.on_step = ask
    with pytest.raises(type(error)):
        scene.fetch()
    record = load_sidecar(scene.beside(".part.json").read_bytes())
    assert isinstance(record, Sidecar)
    assert record.durable_bytes == scene.beside(".part").stat().st_size > 0
    assert record.writer is None
    with FileLock(scene.beside(".lock"), "test", wait_s=0.0):
        pass


def test_asking_to_stop_wakes_a_read_that_waits(scene):
    asking = threading.Thread(target=lambda: scene.stop.ask(Cancelled("interrupted")))
    scene.script(lambda request: _stalling(served(request, LARGE), asking.start))
    with pytest.raises(Cancelled):
        scene.fetch()
    assert scene.beside(".part").stat().st_size == HALF


def test_a_failed_sync_is_mended_once(scene, monkeypatch):
    fails = iter([True])
    real = os.fsync

    def sync(descriptor):
        if os.fstat(descriptor).st_size == len(LARGE) and next(fails, False):
            raise OSError(5, "input/output error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    scene.fetch()
    assert scene.path.read_bytes() == LARGE
    assert scene.asked() == ["GET", "GET"]


def test_a_redirect_that_is_refused_is_not_repeated(scene):
    scene.transport.script = lambda _: Scripted(status=302, fields=(("Location", "http://host/models/file"),))
    with pytest.raises(BadAnswer, match="https to http"):
        scene.fetch()
    assert len(scene.transport.requests) == 1


def test_a_transport_that_breaks_before_any_answer_is_tried_again(scene):
    scene.script(TimeoutError(), ConnectionResetError(104, "reset"))
    assert scene.fetch().status is Status.DOWNLOADED
    assert len(scene.transport.requests) == 3


def _stalling(answer, on_stall):
    return Scripted(status=answer.status, fields=answer.fields, body=answer.body, stalls_after=HALF, on_stall=on_stall)


def test_an_outage_of_minutes_is_waited_out_and_every_pause_is_told(scene):
    scene.script(scene.cut(HALF), *[ConnectionRefusedError(errno.ECONNREFUSED, "refused")] * 12)
    fetched = scene.fetch(patience=DownloadTimeouts())
    assert scene.path.read_bytes() == LARGE
    assert fetched.bytes_from_network == len(LARGE)
    assert scene.clock.monotonic_s() > 60
    told = scene.told("retry")
    assert [one["attempt"] for one in told] == list(range(1, 14))
    assert {one["reason"] for one in told[1:]} == {"refused"}
    assert all(0 < one["wait_secs"] <= 30 for one in told)


def test_an_outage_ends_a_download_once_no_byte_came_for_as_long_as_patience_lasts(scene):
    scene.script(scene.cut(HALF), *[ConnectionRefusedError(errno.ECONNREFUSED, "refused")] * 500)
    with pytest.raises(NetworkFailed, match="no new byte for 30m") as over:
        scene.fetch(patience=DownloadTimeouts())
    assert scene.clock.monotonic_s() == pytest.approx(1800.0, abs=1.0)
    assert over.value.data["kept_bytes"] == HALF
    assert over.value.hint.endswith("downloaded data is kept (1.4 MiB of 2.9 MiB): the same command resumes")


def test_new_bytes_give_a_download_its_whole_patience_again(scene):
    away = [ConnectionRefusedError(errno.ECONNREFUSED, "refused")] * 7
    scene.script(scene.cut(HALF), *away, scene.cut(1000), *away, scene.cut(1000), *away)
    scene.fetch(patience=DownloadTimeouts(no_progress_s=120))
    assert scene.clock.monotonic_s() > 180
    assert scene.path.read_bytes() == LARGE


def test_a_limit_of_attempts_ends_an_outage_before_its_time(scene):
    scene.script(*[ConnectionRefusedError(errno.ECONNREFUSED, "refused")] * 10)
    with pytest.raises(NetworkFailed, match="3 attempts without a new byte"):
        scene.fetch(patience=DownloadTimeouts(attempts=3))
    assert len(scene.transport.requests) == 3


def test_an_answer_that_cannot_be_used_is_not_asked_for_half_an_hour(scene):
    scene.script(*[Scripted(status=200, fields=(("Content-Length", "7"),), body=b"1234567")] * 10)
    with pytest.raises(HashMismatch):
        scene.fetch(patience=DownloadTimeouts())
    assert len(scene.transport.requests) == 3


def test_after_a_forced_fetch_only_one_that_is_not_forced_resumes(scene):
    scene.script(scene.cut(HALF), *[ConnectionRefusedError(errno.ECONNREFUSED, "refused")] * 5)
    with pytest.raises(NetworkFailed) as over:
        scene.fetch(patience=DownloadTimeouts(attempts=1), force=True)
    assert over.value.hint.endswith("the same command without force resumes")
