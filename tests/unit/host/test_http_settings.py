"""Settings from the environment, and which proxy they mean for whom."""

from __future__ import annotations

import pytest

from stoker.core.errors import BadInput
from stoker.host.http.exchange import HttpSettings, origin, read_http_settings
from stoker.host.http.http_routes import Proxy, proxy_for, route_to


def _proxy(url: str, *no_proxy: str, **proxies: str) -> Proxy | None:
    return proxy_for(origin(url), HttpSettings(proxies=proxies, no_proxy=no_proxy))


def test_an_empty_environment_means_the_defaults():
    assert read_http_settings({}) == HttpSettings()
    assert read_http_settings({"http_proxy": "", "HTTPS_PROXY": " ", "NO_PROXY": ""}) == HttpSettings()


def test_proxies_are_read_in_both_spellings_and_the_small_one_wins():
    environment = {"HTTP_PROXY": "a:1", "https_proxy": "b:2", "HTTPS_PROXY": "c:3", "ALL_PROXY": "d:4"}
    assert read_http_settings(environment).proxies == {"http": "a:1", "https": "b:2", "all": "d:4"}


def test_a_visitor_of_a_web_server_can_not_choose_our_proxy():
    environment = {"REQUEST_METHOD": "GET", "HTTP_PROXY": "evil:1", "HTTPS_PROXY": "ours:2"}
    assert read_http_settings(environment).proxies == {"https": "ours:2"}
    assert read_http_settings(environment | {"http_proxy": "ours:1"}).proxies["http"] == "ours:1"


def test_hosts_to_ask_directly_are_read_with_commas_or_spaces():
    assert read_http_settings({"NO_PROXY": "localhost, .Corp.example  10.0.0.0/8,"}).no_proxy == (
        "localhost",
        ".corp.example",
        "10.0.0.0/8",
    )


@pytest.mark.parametrize(
    ("environment", "file", "folder"),
    [
        ({"SSL_CERT_FILE": "a", "REQUESTS_CA_BUNDLE": "b", "CURL_CA_BUNDLE": "c"}, "a", ""),
        ({"REQUESTS_CA_BUNDLE": "b", "CURL_CA_BUNDLE": "c"}, "b", ""),
        ({"SSL_CERT_FILE": "", "CURL_CA_BUNDLE": "c", "SSL_CERT_DIR": "d"}, "c", "d"),
    ],
)
def test_certificates_are_found_under_the_usual_names(environment, file, folder):
    settings = read_http_settings(environment, user_agent="stoker/1")
    assert (settings.ca_file, settings.ca_path, settings.user_agent) == (file, folder, "stoker/1")


def test_each_scheme_has_its_proxy_or_the_one_for_all():
    assert _proxy("http://h/") is None
    assert _proxy("http://h/", https="p:1") is None
    found = _proxy("https://h/", https="http://u:p@p.example:3128", all="http://other:1")
    assert found is not None
    assert (str(found.origin), found.authorization) == ("http://p.example:3128", "Basic dTpw")
    for said in ("p.example:3128", "http://p.example:3128/"):
        found = _proxy("http://h/", all=said)
        assert found is not None
        assert str(found.origin) == "http://p.example:3128"


@pytest.mark.parametrize("said", ["socks5://p:1080", "http://", "p:port"])
def test_a_proxy_that_we_can_not_speak_to_is_refused_and_its_password_not_told(said):
    with pytest.raises(BadInput, match="proxy") as caught:
        _proxy("https://h/", https=said.replace("://", "://u:secret@"))
    assert "secret" not in str(caught.value.to_dict())


@pytest.mark.parametrize(
    ("url", "entry"),
    [
        ("http://anything.example/", "*"),
        ("http://example.org/", "example.org"),
        ("http://example.org/", ".example.org"),
        ("http://a.b.example.org/", "example.org"),
        ("http://a.example.org./", "example.org."),
        ("http://a.example.org/", "*.example.org"),
        ("http://example.org:8080/", "example.org:8080"),
        ("http://10.1.2.3/", "10.0.0.0/8"),
        ("http://10.1.2.3/", "10.1.2.3"),
        ("http://10.1.2.3:81/", "10.1.2.3:81"),
        ("http://[::1]/", "::1"),
        ("http://[::1]:81/", "[::1]:81"),
        ("http://[fd00::5]/", "fd00::/8"),
        ("http://localhost/", "localhost"),
    ],
)
def test_a_host_on_the_list_is_asked_directly(url, entry):
    assert _proxy(url, "unrelated.example", entry, all="p:1") is None


@pytest.mark.parametrize(
    ("url", "entry"),
    [
        ("http://notexample.org/", "example.org"),
        ("http://example.org/", "www.example.org"),
        ("http://example.org:8080/", "example.org:80"),
        ("http://11.1.2.3/", "10.0.0.0/8"),
        ("http://[::1]/", "127.0.0.1"),
        ("http://10.1.2.3/", "fd00::/8"),
        ("http://[::1]:82/", "[::1]:81"),
        ("http://h/", "."),
    ],
)
def test_a_host_beside_the_list_is_not(url, entry):
    assert _proxy(url, entry, all="p:1") is not None


def test_only_https_goes_through_a_tunnel():
    proxy = Proxy(origin=origin("http://p:3128"))
    assert not route_to(origin("http://h/"), None).is_forwarded
    assert route_to(origin("http://h/"), proxy).is_forwarded
    assert route_to(origin("http://h/"), proxy) == route_to(origin("http://other/"), proxy)
    tunnel = route_to(origin("https://h/"), proxy)
    assert not tunnel.is_forwarded
    assert tunnel.is_secure
    assert tunnel != route_to(origin("https://other/"), proxy)
