"""`CODE@HOST[:PORT]` as people paste it."""

from __future__ import annotations

import pytest

from stoker.core.errors import BadInput
from stoker.protocol.enrolment_messages import read_code
from stoker.worker.enrolment import read_invitation
from tests.servers.door import stretched

CODE = "K7QD-M2XW-9HCE"


@pytest.mark.parametrize(
    ("where", "url"),
    [
        ("desk", "https://desk:7717"),
        ("desk.local", "https://desk.local:7717"),
        ("desk.local:80", "https://desk.local:80"),
        ("192.168.1.10", "https://192.168.1.10:7717"),
        ("[fe80::1]", "https://[fe80::1]:7717"),
        ("[fe80::1]:9", "https://[fe80::1]:9"),
        ("https://desk.local:7717/", "https://desk.local:7717"),
        ("127.0.0.1:9", "https://127.0.0.1:9"),
    ],
)
def test_where_to_join_may_be_as_short_as_a_name_and_is_always_tls(where, url):
    found = read_invitation(f" {CODE.lower()}@{where}\n")
    assert found.url == url
    assert (found.id, found.key) == (CODE[:2], stretched(read_code(CODE)))
    assert found.host == url.removeprefix("https://")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CODE, "no host to join"),
        (f"{CODE}@", "no host to join"),
        ("@desk", "not a valid code"),
        ("K7QD@desk", "12 letters"),
        (f"{CODE}@http://desk", "TLS"),
        (f"{CODE}@desk/path", "no host"),
        (f"{CODE}@bad host", "web address"),
        (f"{CODE}@anna:word@desk", "no host"),
    ],
    ids=range(8),
)
def test_what_is_no_invitation_is_refused_with_the_reason(text, why):
    with pytest.raises(BadInput, match=why):
        read_invitation(text)
