"""The files of the web pages, and the one function that answers a request for them.

`/` and `/login` are the same small document, which names its files below `assets/<digest of all files>/`: those never
change under their name, and browsers keep them. It names the scripts that all pages need, and for each page those that
are loaded when it is opened. All links are relative, so that the pages work below any prefix. The content security
policy allows no inline script or style and no other host. Comments of our scripts, a tenth of all bytes, are not sent.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import posixpath
import re
from collections.abc import Mapping
from functools import cached_property

from stoker.coordinator.http.pages import PageAnswer
from stoker.core.frozen import frozen

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_FOLDER = os.path.join(os.path.dirname(__file__), "static")
_INDEX = "index.html"
_ICON = "favicon.svg"
_MAIN = "js/main.js"
_ASSETS = "/assets/"
_OURS = "js/"
_KINDS = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_IMPORT = re.compile(rb"""(?:^|[;\n])\s*import\b(?:[^'"();]*?\bfrom)?\s*["']([^"']+\.js)["']""")
_PAGE = re.compile(rb"^(\w+): lazily\(\(\) => import\('\./([\w.]+)'\)", re.MULTILINE)
_BUILD_CHARACTERS = 16
_ALWAYS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_FOREVER = (b"cache-control", b"public, max-age=31536000, immutable")
_ASK_AGAIN = (b"cache-control", b"no-cache")


@frozen
class _File:
    kind: bytes
    plain: bytes
    packed: bytes


class Pages:
    """All files of the pages, read once. Thread-safe."""

    def __init__(self, folder: str = _FOLDER) -> None:
        self._folder = folder

    @cached_property
    def build(self) -> str:
        """Digest of all files: a page that has another one is out of date."""
        total = hashlib.sha256()
        for name, file in sorted(self._files.items()):
            total.update(f"{name}\0{len(file.plain)}\0".encode() + file.plain)
        return total.hexdigest()[:_BUILD_CHARACTERS]

    def answer(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> PageAnswer:
        """Return the response to a request for a page or one of its files."""
        if path in ("/", "/login"):
            return self._send(self._index, (_ASK_AGAIN,), method, headers)
        if path == "/favicon.ico":
            return self._send(self._files[_ICON], (_ASK_AGAIN,), method, headers)
        build, _, name = path.removeprefix(_ASSETS).partition("/")
        file = self._files.get(name)
        if build != self.build or file is None or name == _INDEX:
            body = b"not found: this page is out of date, reload it\n"
            return PageAnswer(status=404, headers=_head(b"text/plain; charset=utf-8", body, _ASK_AGAIN), body=body)
        return self._send(file, (_FOREVER,), method, headers)

    @cached_property
    def _files(self) -> dict[str, _File]:
        """By the path below the folder, with slashes."""
        found: dict[str, _File] = {}
        for parent, _, names in os.walk(self._folder):
            for name in names:
                kind = _KINDS.get(os.path.splitext(name)[1])
                if kind is not None:
                    path = os.path.join(parent, name)
                    with open(path, "rb") as file:
                        key = os.path.relpath(path, self._folder).replace(os.sep, "/")
                        plain = file.read()
                    found[key] = _packed(kind, without_comments(plain) if key.startswith(_OURS) else plain)
        return found

    @cached_property
    def _index(self) -> _File:
        page = self._files[_INDEX]
        # All scripts of the shell, and of a page, at once: otherwise a browser finds them level by level, each in the
        # one that imports it.
        shell = self._with_imports(_MAIN)
        links = "\n".join(f'<link rel="modulepreload" href="assets/BUILD/{name}">' for name in shell)
        needs = [
            " ".join(
                [found[1].decode(), *(one for one in self._with_imports(_OURS + found[2].decode()) if one not in shell)]
            )
            for found in _PAGE.finditer(self._files[_MAIN].plain)
        ]
        text = page.plain.replace(b"MODULES", links.encode()).replace(b"PAGES", ";".join(needs).encode())
        return _packed(page.kind, text.replace(b"BUILD", self.build.encode()))

    def _with_imports(self, name: str) -> list[str]:
        """Return a script and all that it imports at once, itself first."""
        found = [name]
        for script in found:
            folder = posixpath.dirname(script)
            targets = [
                posixpath.normpath(posixpath.join(folder, one.decode()))
                for one in _IMPORT.findall(self._files[script].plain)
            ]
            # The list grows while it is walked.
            found += [one for one in dict.fromkeys(targets) if one not in found]
        return found

    def _send(
        self, file: _File, more: tuple[tuple[bytes, bytes], ...], method: str, headers: Mapping[bytes, bytes]
    ) -> PageAnswer:
        is_packed = b"gzip" in headers.get(b"accept-encoding", b"").lower()
        body = file.packed if is_packed else file.plain
        tag = b'"%s%s"' % (hashlib.sha256(file.plain).hexdigest()[:32].encode(), b"-gz" if is_packed else b"")
        more = (*more, (b"etag", tag), (b"vary", b"accept-encoding"))
        if tag in [one.strip() for one in headers.get(b"if-none-match", b"").split(b",")]:
            return PageAnswer(status=304, headers=(*_ALWAYS, *more))
        if is_packed:
            more = (*more, (b"content-encoding", b"gzip"))
        head = _head(file.kind, body, *more)
        return PageAnswer(status=200, headers=head, body=b"" if method == "HEAD" else body)


def without_comments(script: bytes) -> bytes:
    """Return a script of ours with an empty line for each line that is a comment: numbers of lines stay."""
    kept: list[bytes] = []
    is_inside = False
    for line in script.split(b"\n"):
        text = line.strip()
        is_comment = is_inside or text.startswith((b"//", b"/**"))
        if is_inside or text.startswith(b"/**"):
            is_inside = b"*/" not in text
            # A type before an expression is followed by code.
            is_comment = is_inside or text.endswith(b"*/")
        kept.append(b"" if is_comment else line.lstrip())
    return b"\n".join(kept)


def _packed(kind: bytes, plain: bytes) -> _File:
    return _File(kind=kind, plain=plain, packed=gzip.compress(plain, 9, mtime=0))


def _head(kind: bytes, body: bytes, *more: tuple[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    return (*_ALWAYS, *more, (b"content-type", kind), (b"content-length", b"%d" % len(body)))
