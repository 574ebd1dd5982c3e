"""Web addresses: taken apart strictly, shown without secrets, joined as servers mean them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import BadInput
from stoker.host.http.exchange import HttpOrigin, is_inner, joined, origin, read_address, shown


@pytest.mark.parametrize(
    ("url", "whom", "target"),
    [
        ("https://Example.ORG", "https://example.org", "/"),
        ("https://example.org:443/a/b?c=d&e#f", "https://example.org", "/a/b?c=d&e"),
        ("http://example.org:443/", "http://example.org:443", "/"),
        ("http://example.org?q=1", "http://example.org", "/?q=1"),
        ("http://[::1]:8080/x", "http://[::1]:8080", "/x"),
        ("http://[0:0::1]/x", "http://[::1]", "/x"),
        ("http://bücher.example/ü?ä", "http://xn--bcher-kva.example", "/%C3%BC?%C3%A4"),
        ("http://h/a%20b%2Fc", "http://h", "/a%20b%2Fc"),
        ('http://h/"<>', "http://h", "/%22%3C%3E"),
        ("http://under_score.example.org./x", "http://under_score.example.org.", "/x"),
    ],
)
def test_an_address_says_whom_to_ask_what_for(url, whom, target):
    address = read_address(url)
    assert (str(address.origin), address.target) == (whom, target)
    assert address.url == whom + target
    assert read_address(address.url) == address


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "/x", "//h/x", "ftp://h/", "file:///etc/passwd", "http://", "https:///x", "http://:80/", "http:h/"),
        *("http://h:0/", "http://h:65536/", "http://h:-1/", "http://h:8o/", "http://[::1/", "http://[::g]/"),
        *(
            "http://h\r\nX: y/",
            "http://h/\n",
            "http://h/a b",
            "http://h\t/",
            "http://h/\x00",
            " http://h/",
            "http://a..b/",
        ),
        *("http://-a/", "http://a,b/", "http://a%00b/", "http://" + "a" * 300, "http://\ud800/", "http://ﷺ/"),
    ],
)
def test_what_is_no_web_address_is_refused(url):
    with pytest.raises(BadInput):
        read_address(url)


def test_a_name_and_password_in_an_address_are_credentials_and_no_part_of_what_is_shown():
    address = read_address("https://us%40er:p%3Ass@example.org/x?sig=secret")
    assert address.authorization == "Basic dXNAZXI6cDpzcw=="
    assert address.url == "https://example.org/x?sig=secret"
    assert read_address("https://token@example.org/").authorization == "Basic dG9rZW46"
    assert read_address("https://example.org/").authorization == ""


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://example.org/a?sig=secret#secret", "https://example.org/a"),
        ("https://u:secret@example.org/a", "https://example.org/a"),
        ("https://u:secret@x@example.org/a@b", "https://example.org/a@b"),
        ("u:secret@example.org?secret", "example.org"),
        ("https://h/\x1b[31m\r\n", "https://h/?[31m??"),
        ("https://u:secret/secret@example.org/x", "https://example.org/x"),
        ("https://[::1]:80/a@b", "https://[::1]:80/a@b"),
    ],
)
def test_an_address_is_shown_without_what_may_be_secret(url, text):
    assert shown(url) == text


@given(st.text(alphabet="/:@?#ab\n .", max_size=30))
def test_showing_never_fails_and_shows_no_query(text):
    assert "secret" not in shown(f"{text}?secret")
    assert shown(text).isprintable()


@given(st.text(max_size=40).map(lambda text: f"http://example.org/{text}"))
def test_an_address_is_either_refused_or_fit_for_a_request_line(url):
    try:
        address = read_address(url)
    except BadInput:
        return
    assert address.target.isascii()
    assert address.target.startswith("/")
    assert not set(address.target) & set(' \r\n\t\x00#"')


def test_two_origins_are_the_same_only_with_scheme_host_and_port():
    same = HttpOrigin(scheme="https", host="example.org", port=443)
    assert origin("https://EXAMPLE.org/x") == origin("https://example.org:443/?y") == same
    for url in (
        "http://example.org:443/",
        "https://example.org:444/",
        "https://www.example.org/",
        "https://example.com/",
    ):
        assert origin(url) != same


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/x", "https://example.org:8443/x"),
        ("x?y", "https://example.org:8443/a/x?y"),
        ("../x#part", "https://example.org:8443/x"),
        ("?only=query", "https://example.org:8443/a/b?only=query"),
        ("//cdn.example.com/x", "https://cdn.example.com/x"),
        ("http://cdn.example.com/x#y", "http://cdn.example.com/x"),
        ("/a b", "https://example.org:8443/a%20b"),
        ("/\u00c3\u00bc", "https://example.org:8443/%C3%BC"),
        ("/%C3%BC%2f", "https://example.org:8443/%C3%BC%2f"),
        ("", "https://example.org:8443/a/b?c"),
    ],
)
def test_a_location_is_seen_from_the_address_that_was_asked(location, url):
    assert joined("https://example.org:8443/a/b?c", location) == url


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "2130706433", "0x7f.1", "017700000001", "0", "0.0.0.0", "10.1.2.3", "172.16.0.1"),
        *("192.168.1.1", "169.254.169.254", "100.64.0.1", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "localhost", "localhost.", "a.localhost"),
    ],
)
def test_this_computer_and_private_networks_are_inner(host):
    assert is_inner(host)


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "example.org", "localhost.example.org", "face"]
)
def test_everybody_else_is_not(host):
    assert not is_inner(host)
