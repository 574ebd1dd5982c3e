"""What the web pages need of a server: their paths, their responses as values, and the public address.

The files are in the package `web`, which `app` passes in as an `AnswerPage`. Imports no library of the service.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from stoker.core.errors import BadInput
from stoker.core.frozen import frozen

PAGE_HEADER = "X-Stoker-Page"
"""Sent by our pages, with the key of their session: a form or an image of another page can't send it."""
PAGE_FIELD = PAGE_HEADER.lower().encode()
Headers = tuple[tuple[bytes, bytes], ...]
HARMLESS: Headers = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Of every answer that is no page: a file of a job that a browser shows by itself runs nothing and is in no frame."""
_PAGE = re.compile(r"/(?:login|favicon\.ico|assets/.*)?", re.DOTALL)
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
_PORTS = {"http": 80, "https": 443}


@frozen
class PageAnswer:
    """One response: a page, a script or a style sheet."""

    status: int
    headers: Headers
    body: bytes = b""


AnswerPage = Callable[[str, str, Mapping[bytes, bytes]], PageAnswer]
"""Returns the response to a request for a page: method, path, headers."""


def is_page(path: str) -> bool:
    """Return True for the path of a page or one of its files."""
    return _PAGE.fullmatch(path) is not None


@frozen
class PublicUrl:
    """The address under which browsers reach a server, behind a proxy or not."""

    origin: str
    """`https://desk.example.org`, as browsers send it."""
    host: str
    """In lower case, without port and brackets."""
    hosts: tuple[str, ...]
    """Accepted values of `Host`: with and without port."""
    prefix: str = ""
    """`/stoker`, or empty."""

    @property
    def is_secure(self) -> bool:
        """True if browsers use TLS."""
        return self.origin.startswith("https:")


def read_public_url(text: str) -> PublicUrl:
    """Read `--public-url`. Raises `BadInput` for what is no address of pages."""
    hint = "an address such as https://desk.example.org or https://example.org/stoker"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise BadInput(f"--public-url {text!r}: {error}", hint=hint) from None
    host = (parts.hostname or "").lower()
    if parts.scheme not in _PORTS or not host or parts.query or parts.fragment or parts.username is not None:
        raise BadInput(f"--public-url {text!r} is not an address of pages", hint=hint)
    prefix = parts.path.rstrip("/")
    if not _PREFIX.fullmatch(prefix) or prefix.startswith(("/v1", "/assets", "/login")):
        raise BadInput(f"--public-url {text!r}: the path {prefix!r} is not supported", hint=hint)
    shown = f"[{host}]" if ":" in host else host
    is_default = port is None or port == _PORTS[parts.scheme]
    origin = f"{parts.scheme}://{shown}" + ("" if is_default else f":{port}")
    return PublicUrl(origin=origin, host=host, hosts=(shown, f"{shown}:{port or _PORTS[parts.scheme]}"), prefix=prefix)


def without_prefix(path: str, prefix: str) -> str:
    """Return a path without the public prefix; a proxy may have removed it already."""
    if prefix and path.startswith(f"{prefix}/"):
        return path[len(prefix) :]
    return path
