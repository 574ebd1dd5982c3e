"""Redirects: which are taken, what goes along, and where a caller may stop. F54 to F58."""

from __future__ import annotations

import pytest

from stoker.core.errors import BadAnswer, BadInput, NetworkFailed
from stoker.host.http.client import at_another_origin, follow
from stoker.host.http.exchange import Request
from stoker.host.http.http_errors import Ended
from tests.fakes.transport import FakeTransport, Scripted

HUB = "https://hub.test"
HEADERS = {
    "authorization": "Bearer secret",
    "Cookie": "c=secret",
    "X-Own": "secret",
    "Range": "bytes=5-",
    "If-Range": '"e"',
}


def _to(location: str, status: int = 302) -> Scripted:
    return Scripted(status=status, fields=(("Location", location),), body=b"look there")


def _web(**pages: str | Scripted) -> FakeTransport:
    """A few pages by path (`a` is /a) that redirect or, where there is none, answer with a text."""

    def answer(request: Request) -> Scripted:
        path = request.url.split("/", 3)[3].partition("?")[0]
        page = pages.get(path, Scripted(body=b"here"))
        return _to(page) if isinstance(page, str) else page

    return FakeTransport(answer)


def _refusal(web: FakeTransport, url: str = f"{HUB}/a?sig=secret") -> BadAnswer:
    with pytest.raises(BadAnswer) as caught:
        follow(web, Request(url=url, headers=HEADERS))
    assert web.open_replies == 0
    assert (caught.value.data["reason"], caught.value.data["is_lasting"]) == ("redirect", True)
    assert "secret" not in str(caught.value.to_dict())
    return caught.value


def test_an_answer_that_is_no_redirect_is_given_as_it_is():
    for status in (200, 206, 300, 304, 305, 404, 500):
        web = _web(a=Scripted(status=status, fields=(("Location", "/b"),)))
        followed = follow(web, Request(url=f"{HUB}/a", headers={}))
        assert (followed.reply.status, followed.hops, followed.stopped_at) == (status, (), None)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_redirect_is_followed_with_the_same_method(status, method):
    web = _web(a=_to("/b?x=1#part", status))
    followed = follow(web, Request(url=f"{HUB}/a", method=method, headers=HEADERS))
    assert followed.reply.url == f"{HUB}/b?x=1"
    (hop,) = followed.hops
    assert (hop.status, hop.from_url, hop.to_url, hop.changes_origin) == (status, f"{HUB}/a", f"{HUB}/b?x=1", False)
    assert hop.headers.get("Location") == "/b?x=1#part"
    assert [request.method for request in web.requests] == [method, method]
    assert web.requests[1].headers == HEADERS
    assert web.open_replies == 1


@pytest.mark.parametrize(
    "there", ["https://cdn.test/b", "https://hub.test:444/b", "https://sub.hub.test/b", "https://hub.test./b"]
)
def test_another_origin_learns_nothing_but_which_bytes_are_wanted(there):
    web = _web(a=there)
    followed = follow(web, Request(url=f"{HUB}/a", headers=HEADERS))
    assert followed.hops[0].changes_origin
    assert web.requests[1].headers == {"Range": "bytes=5-", "If-Range": '"e"'}


def test_a_change_of_scheme_alone_is_another_origin():
    web = _web(a="https://hub.test/b")
    follow(web, Request(url="http://hub.test/a", headers=HEADERS))
    assert "authorization" not in web.requests[1].headers


def test_what_was_lost_is_not_regained_on_the_way_back():
    web = _web(a="https://cdn.test/b", b=f"{HUB}/c")
    assert follow(web, Request(url=f"{HUB}/a", headers=HEADERS)).reply.url == f"{HUB}/c"
    assert "authorization" not in web.requests[2].headers


def test_credentials_in_the_first_address_are_the_first_servers_only():
    web = _web(a="/b", b="https://cdn.test/c")
    follow(web, Request(url="https://us:pw@hub.test/a", headers={}))
    assert [request.headers.get("Authorization") for request in web.requests] == ["Basic dXM6cHc="] * 2 + [None]
    assert [request.url for request in web.requests] == [f"{HUB}/a", f"{HUB}/b", "https://cdn.test/c"]


def test_a_step_down_from_https_is_refused():
    assert "https to http" in _refusal(_web(a="http://hub.test/b")).message
    assert "https to http" in _refusal(_web(a="http://cdn.test/b?sig=secret")).message


def test_ten_hops_are_taken_and_the_eleventh_is_refused():
    chain = {f"p{number}": f"/p{number + 1}" for number in range(10)}
    followed = follow(_web(**chain), Request(url=f"{HUB}/p0", headers={}))
    assert len(followed.hops) == 10
    assert "11th" in _refusal(_web(**chain, p10="/p11"), f"{HUB}/p0").message
    with pytest.raises(BadAnswer):
        follow(_web(**chain), Request(url=f"{HUB}/p0", headers={}), at_most=9)


@pytest.mark.parametrize("pages", [{"a": "/a"}, {"a": "/b", "b": "/a"}, {"a": "/b", "b": "/c", "c": "/b#x"}])
def test_a_circle_is_refused_at_its_first_round(pages):
    web = _web(**pages)
    error = _refusal(web, f"{HUB}/a")
    assert "circle" in error.message
    assert len(web.requests) == len(pages)


@pytest.mark.parametrize(
    "location",
    ["https://us:secret@cdn.test/b", "https://secret@hub.test/b", "https://us:@hub.test/b", "//us:secret@cdn.test/"],
)
def test_credentials_in_a_location_are_refused(location):
    assert "credentials" in _refusal(_web(a=location)).message


@pytest.mark.parametrize(
    "location", ["ftp://hub.test/b", "file:///etc/passwd", "https://a:b:c/", "javascript:x", "https://h:0/"]
)
def test_a_location_that_is_no_web_address_is_refused(location):
    assert "no web address" in _refusal(_web(a=location)).message


def test_a_redirect_to_nowhere_or_to_two_places_is_refused():
    assert "no location" in _refusal(_web(a=Scripted(status=302))).message
    both = Scripted(status=302, fields=(("Location", "/b"), ("Location", "/c")))
    assert "two locations" in _refusal(_web(a=both)).message
    same = Scripted(status=302, fields=(("Location", "/b"), ("Location", "/b")))
    assert follow(_web(a=same), Request(url=f"{HUB}/a", headers={})).reply.url == f"{HUB}/b"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "169.254.169.254",
        "10.0.0.1",
        "192.168.0.1",
        "[fe80::1]",
        "127.1",
        "0x7f000001",
    ],
)
def test_a_public_host_can_not_send_us_into_a_private_network(host):
    assert "private" in _refusal(_web(a=f"https://{host}/b")).message


@pytest.mark.parametrize("first", ["http://127.0.0.1:1/a", "http://localhost/a", "http://10.0.0.7/a"])
def test_a_private_host_may_send_us_to_another(first):
    web = _web(a="http://127.0.0.1:2/b")
    assert follow(web, Request(url=first, headers={})).reply.url == "http://127.0.0.1:2/b"


def test_a_way_over_a_public_host_is_judged_by_where_it_began():
    web = _web(a="https://cdn.test/b", b="https://10.0.0.1/c")
    assert follow(web, Request(url="https://10.0.0.1/a", headers={})).reply.url == "https://10.0.0.1/c"


def test_a_caller_may_stop_before_a_hop_and_read_the_answer_that_redirects():
    away = Scripted(status=302, fields=(("Location", "https://cdn.test/x"), ("X-Linked-Size", "7")))
    web = _web(a="/b", b=away)
    followed = follow(web, Request(url=f"{HUB}/a", method="HEAD", headers=HEADERS), stops_at=at_another_origin)
    assert (followed.reply.status, followed.reply.headers.get("X-Linked-Size")) == (302, "7")
    assert followed.stopped_at is not None
    assert followed.stopped_at.to_url == "https://cdn.test/x"
    assert [hop.to_url for hop in followed.hops] == [f"{HUB}/b"]
    assert len(web.requests) == 2
    assert web.open_replies == 1


def test_a_hop_at_which_a_caller_would_stop_is_checked_all_the_same():
    web = _web(a="http://cdn.test/b")
    with pytest.raises(BadAnswer):
        follow(web, Request(url=f"{HUB}/a", headers={}), stops_at=at_another_origin)
    assert web.open_replies == 0


def test_a_caller_that_fails_to_decide_leaves_no_reply_open():
    web = _web(a="/b")
    with pytest.raises(ZeroDivisionError):
        follow(web, Request(url=f"{HUB}/a", headers={}), stops_at=lambda hop: bool(1 / 0))
    assert web.open_replies == 0


def test_a_failure_on_the_way_is_a_failure():
    web = FakeTransport.saying([_to("/b"), Ended()])
    with pytest.raises(NetworkFailed):
        follow(web, Request(url=f"{HUB}/a", headers={}))
    assert web.open_replies == 0


def test_an_address_that_is_none_is_the_callers_mistake():
    with pytest.raises(BadInput):
        follow(_web(), Request(url="hub.test/a", headers={}))
