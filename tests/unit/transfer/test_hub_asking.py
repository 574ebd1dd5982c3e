import socket
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import AuthRefused, BadAnswer, BadInput, Cancelled, NetworkFailed, NotOnServer, RateLimited
from stoker.core.events import Kinds
from stoker.core.frozen import changed
from stoker.host.http.exchange import Request
from stoker.transfer.download.types import DownloadRequest, DownloadTimeouts
from stoker.transfer.hub.client import Hub, pieces_of
from stoker.transfer.hub.repository import take_whole
from tests.fakes.transport import FakeReply, FakeTransport, Scripted
from tests.servers.hub import Answer, Asked, Served
from tests.unit.transfer.real_hubs import FILES, LARGE, REPO, Scene, scenes


@pytest.fixture
def scene(tmp_path: Path):
    with scenes(tmp_path, page_size=2) as one:
        yield one


def timeless(scene: Scene, **settings: object) -> tuple[Hub, FakeClock]:
    """Return a hub whose pauses take no time."""
    hub, clock = scene.hub(**settings), FakeClock()
    tools = changed(hub.tools, clock=clock)
    return Hub(hub.settings, tools=tools, patience=hub.patience, stop=scene.stop, memo=scene.memo), clock


def always(answer: Answer):
    return lambda asked, _: answer


def test_a_listing_in_many_pages_is_read_to_its_end(scene: Scene):
    assert [file.path for file in scene.hub().files(REPO, scene.commit)] == sorted(FILES)
    assert len(scene.fake.asked_for("/tree/")) == 4


def test_a_commit_is_listed_once_however_often_it_is_asked_for(scene: Scene):
    hub = scene.hub()
    assert hub.files(REPO, scene.commit) == hub.files(REPO, scene.commit)
    assert len(scene.fake.asked_for("/tree/")) == 4
    assert not scene.repo_folder.exists()


def test_a_listing_without_end_is_refused(scene: Scene):
    def repeat(asked: Asked, answer: Answer) -> Answer:
        answer.headers["Link"] = f'<{scene.fake.endpoint}{asked.target}>; rel="next"'
        return answer

    scene.fake.tamper = repeat
    with pytest.raises(BadAnswer, match="too long"):
        scene.hub().files(REPO, scene.commit)


def test_a_listing_that_goes_on_at_another_server_is_refused(scene: Scene):
    def lure(asked: Asked, answer: Answer) -> Answer:
        answer.headers["Link"] = f'<{scene.fake.cdn}/more>; rel="next"'
        return answer

    scene.fake.tamper = lure
    with pytest.raises(BadAnswer, match="another server"):
        scene.hub(token="secret").files(REPO, scene.commit)
    assert not any(one.at_cdn for one in scene.fake.asked)


def test_an_answer_without_end_is_refused(scene: Scene, monkeypatch):
    monkeypatch.setattr("stoker.transfer.hub.client.LONGEST_ANSWER_BYTES", 10)
    with pytest.raises(BadAnswer, match="too long"):
        scene.hub().resolve(REPO)


@pytest.mark.parametrize(("revision", "branch"), [("main", "main"), ("refs/pr/1", "refs/pr/1"), ("v1.0", "v1.0")])
def test_a_revision_is_the_commit_that_it_is_now(scene: Scene, revision: str, branch: str):
    commit = scene.fake.repository("org/name").commit({"a": b"1"}, branch)
    found = scene.hub().resolve(REPO, revision)
    assert (found.asked, found.commit) == (revision, commit)


def test_a_commit_is_itself_and_nobody_is_asked(scene: Scene):
    assert scene.hub().resolve(REPO, "c" * 40).commit == "c" * 40
    assert scene.fake.asked == []


def test_an_unknown_repository_is_told_apart_from_an_unknown_revision(scene: Scene):
    with pytest.raises(AuthRefused, match="no such repository, or it is private"):
        scene.hub().resolve(changed(REPO, name="org/other"))
    with pytest.raises(NotOnServer, match="no such revision"):
        scene.hub().resolve(REPO, "other")
    with pytest.raises(NotOnServer, match="no such file"):
        scene.hub().file(REPO, "main", "other.txt")


def test_a_token_opens_a_private_repository(scene: Scene):
    scene.fake.repository("org/name").is_private = True
    scene.fake.token = "hf_secret"
    with pytest.raises(AuthRefused) as caught:
        scene.hub().resolve(REPO)
    assert "HF_TOKEN" in caught.value.hint
    assert scene.hub(token="hf_secret").resolve(REPO).commit == scene.commit
    with pytest.raises(AuthRefused) as caught:
        scene.hub(token="hf_wrong").resolve(REPO)
    assert "hf_wrong" not in str(caught.value.to_dict())


def test_a_gated_file_says_on_which_page_its_terms_are(scene: Scene):
    scene.fake.repository("org/name").is_gated = True
    with pytest.raises(AuthRefused, match="gated") as caught:
        scene.hub().file(REPO, "main", "config.json")
    assert f"{scene.fake.endpoint}/org/name," in caught.value.hint


def test_a_server_with_trouble_is_asked_again_and_each_time_it_is_told(scene: Scene):
    troubles = iter([Answer(503, {"Retry-After": "7"}), Answer(500), Answer(429)])
    scene.fake.tamper = lambda asked, answer: next(troubles, answer)
    hub, clock = timeless(scene)
    hub.patience = changed(hub.patience, attempts=4)
    hub = Hub(hub.settings, tools=hub.tools, patience=hub.patience, stop=scene.stop, memo=scene.memo)
    before_s = clock.monotonic_s()
    assert hub.resolve(REPO).commit == scene.commit
    told = [event.fields for event in scene.news if event.kind == Kinds.DOWNLOAD_RETRY]
    assert [(one["phase"], one["wait_secs"], one["reason"], one["attempt"]) for one in told] == [
        ("retry", 7.0, "503", 1),
        ("retry", 1.0, "500", 2),
        ("retry", 5.0, "429", 3),
    ]
    assert clock.monotonic_s() - before_s == pytest.approx(13.0)


@pytest.mark.parametrize(("status", "error"), [(429, RateLimited), (503, NetworkFailed), (400, BadAnswer)])
def test_patience_ends_with_what_the_server_last_said(scene: Scene, status: int, error: type[Exception]):
    scene.fake.tamper = always(Answer(status))
    hub, _ = timeless(scene)
    with pytest.raises(error):
        hub.resolve(REPO)
    assert len(scene.fake.asked) == (1 if status == 400 else 3)


def test_a_connection_that_is_cut_is_tried_again(scene: Scene):
    cuts = iter([1, 1])

    def cut(asked: Asked, answer: Answer) -> Answer:
        answer.cuts_at = next(cuts, None)
        return answer

    scene.fake.tamper = cut
    hub, _ = timeless(scene)
    assert hub.resolve(REPO).commit == scene.commit


def test_being_stopped_ends_the_asking(scene: Scene):
    scene.fake.tamper = always(Answer(503))
    scene.stop.ask(Cancelled("stopped"))
    with pytest.raises(Cancelled):
        scene.hub().resolve(REPO)
    assert scene.fake.asked == []


def test_a_login_page_is_no_listing(scene: Scene):
    scene.fake.tamper = always(Answer(200, {"Content-Type": "text/html"}, b"<html>please log in</html>"))
    with pytest.raises(BadAnswer, match="not JSON"):
        scene.hub().resolve(REPO)


def test_the_facts_of_a_file_are_those_of_the_hub_and_its_bytes_are_not_asked_for(scene: Scene):
    small, commit = scene.hub().file(REPO, "main", "config.json")
    assert (small.git_sha1, small.size_bytes) == (Served(b'{"a": 1}\n').oid, 9)
    assert commit == scene.commit
    large, _ = scene.hub().file(REPO, "main", "model.bin")
    assert (large.sha256, large.size_bytes) == (Served(LARGE).sha256, len(LARGE))
    assert not any(one.at_cdn for one in scene.fake.asked)
    assert {one.method for one in scene.fake.asked} == {"HEAD"}


@pytest.mark.parametrize("status", [405, 501, 403])
def test_where_head_is_refused_one_byte_tells_the_size(scene: Scene, status: int):
    scene.fake.tamper = lambda asked, answer: Answer(status) if asked.method == "HEAD" else answer
    file, _ = scene.hub().file(REPO, "main", "config.json")
    assert file.size_bytes == 9
    assert [one.headers.get("range") for one in scene.fake.asked] == [None, "bytes=0-0"]


def test_where_both_are_refused_we_are_not_let_in(scene: Scene):
    scene.fake.tamper = always(Answer(403))
    with pytest.raises(AuthRefused):
        scene.hub().file(REPO, "main", "config.json")


def test_the_tags_of_a_plain_mirror_are_no_digests(scene: Scene):
    tag = {"ETag": f'"{"a" * 40}"', "Content-Length": "9"}
    scene.fake.tamper = always(Answer(200, tag))
    file, commit = scene.hub().file(REPO, "main", "config.json")
    assert (file.blob, commit, file.size_bytes) == ("", "", 9)


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Repo-Commit": "../../x"},
        {"X-Repo-Commit": "a" * 40, "X-Linked-Size": "-1"},
        {"X-Linked-Size": "1e9"},
        {"X-Linked-Size": "9" * 30},
    ],
)
def test_facts_that_can_not_be_are_refused(scene: Scene, headers: dict[str, str]):
    scene.fake.tamper = always(Answer(200, headers))
    with pytest.raises(BadAnswer):
        scene.hub().file(REPO, "main", "config.json")


def test_a_weak_tag_and_an_encoded_body_tell_nothing(scene: Scene):
    weak = {"X-Repo-Commit": "a" * 40, "ETag": f'W/"{"b" * 40}"', "Content-Encoding": "gzip", "Content-Length": "5"}
    scene.fake.tamper = always(Answer(200, weak))
    file, _ = scene.hub().file(REPO, "main", "config.json")
    assert (file.blob, file.size_bytes) == ("", None)


def test_a_name_that_leads_elsewhere_is_not_even_asked_for(scene: Scene):
    with pytest.raises(BadInput):
        scene.hub().file(REPO, "main", "../../etc/passwd")
    assert scene.fake.asked == []


def test_offline_one_file_is_looked_up(scene: Scene):
    scene.fetch()
    scene.fake.asked.clear()
    hub = scene.hub(offline=True)
    file, commit = hub.file(REPO, "main", "model.bin")
    assert (file.sha256, commit) == (Served(LARGE).sha256, scene.commit)
    with pytest.raises(NotOnServer, match="has no other"):
        hub.file(REPO, "main", "other")
    assert scene.fake.asked == []


def test_a_listing_of_too_many_bytes_is_refused_however_many_pages_they_are_on(scene: Scene, monkeypatch):
    monkeypatch.setattr("stoker.transfer.hub.client.LONGEST_LISTING_BYTES", 300)
    with pytest.raises(BadAnswer, match="too long"):
        scene.hub().files(REPO, scene.commit)
    assert len(scene.fake.asked_for("/tree/")) < 4


def test_one_page_has_no_more_than_a_few_megabytes(scene: Scene):
    padded = Answer(200, {"Content-Type": "application/json"}, b"[" + b" " * (9 << 20) + b"]")
    scene.fake.tamper = always(padded)
    with pytest.raises(BadAnswer, match="too long"):
        scene.hub().files(REPO, scene.commit)


def test_a_repository_that_lists_only_folders_has_no_files(scene: Scene):
    folders = Answer(200, {"Content-Type": "application/json"}, b'[{"type": "directory", "path": "a"}]')
    scene.fake.tamper = always(folders)
    with pytest.raises(NotOnServer, match="no files"):
        scene.hub().files(REPO, scene.commit)


def trickling(script) -> tuple[FakeTransport, FakeClock]:
    """Return a transport whose answers come a byte a second."""
    clock = FakeClock()

    class Trickle(FakeReply):
        def read(self, at_most_bytes: int) -> bytes:
            clock.sleep(1.0)
            return super().read(min(1, at_most_bytes))

    class Slow(FakeTransport):
        def send(self, request):
            reply = super().send(request)
            reply.__class__ = Trickle
            return reply

    return Slow(script), clock


@pytest.mark.parametrize("what", ["/revision/", "/tree/"])
def test_an_answer_that_trickles_is_given_up_in_the_time_that_was_given(scene: Scene, what: str):
    body = b'{"sha": "%b"}' % (b"a" * 40) + b" " * 5000
    transport, clock = trickling(lambda request: Scripted(body=body if "/revision/" in request.url else b"[]" * 3000))
    hub = scene.hub()
    patience = changed(hub.patience, no_progress_s=5.0, slow_s=5.0)
    tools = changed(hub.tools, transport=transport, clock=clock)
    slow = Hub(hub.settings, tools=tools, patience=patience, stop=scene.stop, memo=scene.memo)
    began_s = clock.monotonic_s()
    with pytest.raises(NetworkFailed, match="too slow"):
        slow.resolve(REPO) if what == "/revision/" else slow.files(REPO, scene.commit)
    assert clock.monotonic_s() - began_s < 20


def test_a_small_file_that_trickles_is_not_waited_for(scene: Scene):
    transport, clock = trickling(lambda _: Scripted(body=bytes(3000)))
    tools = changed(scene.hub().tools, transport=transport, clock=clock)
    wanted = DownloadRequest(url="http://127.0.0.1/x", size_bytes=3000)
    began_s = clock.monotonic_s()
    assert take_whole(wanted, tools=tools, patience=DownloadTimeouts(), stop=scene.stop) is None
    assert clock.monotonic_s() - began_s < 70


def test_a_small_answer_that_is_just_quick_enough_has_an_end_all_the_same(scene: Scene):
    transport, clock = trickling(lambda _: Scripted(body=bytes(3000)))
    reply = transport.send(Request(url="http://127.0.0.1/x", headers={}))
    patience = changed(DownloadTimeouts(), slow_bytes_per_s=0)
    with pytest.raises(NetworkFailed, match="did not end within"):
        list(pieces_of(reply, 10, clock=clock, patience=patience))
    assert clock.monotonic_s() < 3000


def test_a_hub_that_is_away_for_minutes_is_asked_until_it_is_back(scene: Scene):
    troubles = iter([Answer(503)] * 12)
    scene.fake.tamper = lambda asked, answer: next(troubles, answer)
    hub, clock = timeless(scene)
    hub = Hub(hub.settings, tools=hub.tools, patience=DownloadTimeouts(), stop=scene.stop, memo=scene.memo)
    assert hub.resolve(REPO).commit == scene.commit
    assert clock.monotonic_s() > 60


def test_a_hub_that_stays_away_is_given_up_when_patience_is_over(scene: Scene):
    scene.fake.tamper = always(Answer(503))
    hub, clock = timeless(scene)
    hub = Hub(hub.settings, tools=hub.tools, patience=DownloadTimeouts(), stop=scene.stop, memo=scene.memo)
    with pytest.raises(NetworkFailed):
        hub.resolve(REPO)
    assert clock.monotonic_s() == pytest.approx(1800.0)


def test_a_hub_under_a_name_that_does_not_exist_is_not_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    def unknown(*_args: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    hub, clock = timeless(scene, endpoint="http://no-such-hub.test")
    began_s = clock.monotonic_s()
    with pytest.raises(NetworkFailed, match=r"no-such-hub\.test.*3 attempts") as refused:
        Hub(hub.settings, tools=hub.tools, patience=DownloadTimeouts(), stop=scene.stop, memo=scene.memo).resolve(REPO)
    assert "spelling" in refused.value.hint
    assert clock.monotonic_s() - began_s < 10
