"""A hub on raw sockets, faithful enough for the real `hf download`: repositories, commits, branches, two ports.

The first port is the hub: revisions, listings in pages, files that git keeps; it sends a large file's reader to the
second port, a content network that knows digests and signed links and no tokens. Both remember what they were asked.
`tamper` may change any answer.

Standard library only; `python -m tests.servers.hub --files 1000` serves one repository until its input ends.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

REASONS = {200: "OK", 206: "Partial Content", 302: "Found", 307: "Temporary Redirect", 401: "Unauthorized"}
_REPO = r"(?:(models|datasets|spaces)/)?([^/]+/[^/]+)"
_REVISION = re.compile(rf"/api/{_REPO}(?:/revision/([^/]+))?")
_TREE = re.compile(rf"/api/{_REPO}/tree/([^/]+)")
_FILE = re.compile(r"/(?:(datasets|spaces)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_PIECE = 1 << 20


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass(slots=True)
class Asked:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    at_cdn: bool

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.target).query)


@dataclass(slots=True)
class Answer:
    """What goes out."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cuts_at: int | None = None
    """Close the connection after so many bytes of the body."""


@dataclass(slots=True)
class Served:
    """One file of a commit."""

    data: bytes
    is_large: bool = False
    xet_hash: str = ""
    sha256: str = ""
    oid: str = ""

    def __post_init__(self) -> None:
        self.sha256 = hashlib.sha256(self.data).hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n"
        self.oid = git_sha1(pointer.encode() if self.is_large else self.data)

    @property
    def tag(self) -> str:
        return self.sha256 if self.is_large else self.oid

    def entry(self, path: str) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "oid": self.oid, "size": len(self.data), "path": path}
        if self.is_large:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.data), "pointerSize": 134}
        if self.xet_hash:
            entry["xetHash"] = self.xet_hash
        return entry


@dataclass(slots=True)
class Repository:
    """Commits by id, and what each branch is now."""

    commits: dict[str, dict[str, Served]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    is_gated: bool = False
    is_private: bool = False

    def commit(self, files: Mapping[str, bytes | Served], branch: str = "main") -> str:
        """Make a commit of plain bytes (kept by git) or files with particulars, and let a branch be it."""
        held = {path: file if isinstance(file, Served) else Served(file) for path, file in files.items()}
        text = "".join(f"{path}\0{file.tag}\n" for path, file in sorted(held.items()))
        made = hashlib.sha1(f"{len(self.commits)}\n{text}".encode()).hexdigest()
        self.commits[made] = held
        self.branches[branch] = made
        return made

    def find(self, revision: str) -> str | None:
        if revision in self.branches:
            return self.branches[revision]
        return next((commit for commit in self.commits if len(revision) >= 5 and commit.startswith(revision)), None)


class FakeHub:
    """The two ports, served by a thread for each connection. Use it in a `with`."""

    def __init__(self, *, page_size: int = 1000, token: str = "") -> None:
        self.page_size = page_size
        self.token = token
        """What opens private and gated repositories."""
        self.repositories: dict[str, Repository] = {}
        self.asked: list[Asked] = []
        self.tamper: Callable[[Asked, Answer], Answer] | None = None
        self.lists = True
        """Whether it answers questions about repositories; a plain mirror does not."""
        self._blobs: dict[str, bytes] = {}
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._is_open = True
        self._hub = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._cdn = socket.create_server(("127.0.0.1", 0), backlog=128)
        for listener in (self._hub, self._cdn):
            self._start(self._accept, listener)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._hub.getsockname()[1]}"

    @property
    def cdn(self) -> str:
        return f"http://127.0.0.1:{self._cdn.getsockname()[1]}"

    def repository(self, name: str) -> Repository:
        """Return the repository of that name (`org/name`, `datasets/org/name`), made if it is new."""
        return self.repositories.setdefault(name, Repository())

    def asked_for(self, part: str, method: str = "") -> list[Asked]:
        """Return the requests whose target holds a text."""
        return [one for one in self.asked if part in one.target and method in ("", one.method)]

    def close(self) -> None:
        self._is_open = False
        for one in (self._hub, self._cdn, *list(self._connections)):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while self._is_open:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.add(connection)
            self._start(self._serve, connection, listener is self._cdn)

    def _serve(self, connection: socket.socket, at_cdn: bool) -> None:
        buffer = b""
        with contextlib.suppress(OSError), connection:
            while self._is_open:
                while b"\r\n\r\n" not in buffer:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    buffer += piece
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                asked = _read_head(head.decode("latin-1"), at_cdn)
                self.asked.append(asked)
                answer = self._at_cdn(asked) if at_cdn else self._at_hub(asked)
                if self.tamper is not None:
                    answer = self.tamper(asked, answer)
                if not _send(connection, asked, answer):
                    return
        self._connections.discard(connection)

    def _at_hub(self, asked: Asked) -> Answer:
        path = urlsplit(asked.target).path
        if self.lists and (found := _TREE.fullmatch(path)):
            return self._with_commit(asked, found[1], found[2], found[3], self._tree)
        if self.lists and (found := _REVISION.fullmatch(path)):
            return self._with_commit(asked, found[1], found[2], found[3] or "main", _revision)
        if found := _FILE.fullmatch(path):
            name = unquote(found[4])
            return self._with_commit(
                asked, found[1], found[2], found[3], lambda one, repo, commit: self._file(one, repo, commit, name)
            )
        return Answer(404, {"Content-Type": "text/html"}, b"<html>no such page</html>")

    def _with_commit(
        self,
        asked: Asked,
        kind: str | None,
        name: str,
        revision: str,
        work: Callable[[Asked, Repository, str], Answer],
    ) -> Answer:
        prefix = "" if kind in (None, "models") else f"{kind}/"
        repo = self.repositories.get(f"{prefix}{unquote(name)}")
        knows_us = bool(self.token) and asked.headers.get("authorization") == f"Bearer {self.token}"
        if repo is None or (repo.is_private and not knows_us):
            return _refusal(404 if knows_us else 401, "RepoNotFound", "Repository not found")
        commit = repo.find(unquote(revision))
        if commit is None:
            return _refusal(404, "RevisionNotFound", "Invalid rev id: " + revision)
        if repo.is_gated and not knows_us and "/resolve/" in asked.target:
            return _refusal(403 if "authorization" in asked.headers else 401, "GatedRepo", "Access is restricted")
        return work(asked, repo, commit)

    def _tree(self, asked: Asked, repo: Repository, commit: str) -> Answer:
        paths = sorted(repo.commits[commit])
        folders = sorted({path.rpartition("/")[0] for path in paths if "/" in path})
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": folder} for folder in folders]
        entries += [repo.commits[commit][path].entry(path) for path in paths]
        start = int(asked.query.get("cursor", ["0"])[0])
        headers = {"Content-Type": "application/json"}
        end = start + self.page_size
        if end < len(entries):
            bare = asked.target.split("?")[0]
            headers["Link"] = f'<{self.endpoint}{bare}?recursive=true&cursor={end}>; rel="next"'
        return Answer(200, headers, json.dumps(entries[start:end]).encode())

    def _file(self, asked: Asked, repo: Repository, commit: str, name: str) -> Answer:
        served = repo.commits[commit].get(name)
        if served is None:
            answer = _refusal(404, "EntryNotFound", "Entry not found")
            answer.headers["X-Repo-Commit"] = commit
            return answer
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes", "ETag": f'"{served.oid}"'}
        if not served.is_large:
            return _content(asked, served.data, headers)
        self._blobs[served.sha256] = served.data
        headers |= {"X-Linked-Size": str(len(served.data)), "X-Linked-Etag": f'"{served.sha256}"'}
        if served.xet_hash:
            headers["X-Xet-Hash"] = served.xet_hash
        location = f"{self.cdn}/{served.sha256}?Signature={quote(served.sha256[:8])}"
        return Answer(302, headers | {"Location": location}, f"Found. Redirecting to {location}".encode())

    def _at_cdn(self, asked: Asked) -> Answer:
        digest = asked.path.lstrip("/")
        data = self._blobs.get(digest)
        if data is None or asked.query.get("Signature") != [digest[:8]]:
            return Answer(403, {}, b"<Error>expired</Error>")
        return _content(asked, data, {"ETag": f'"{digest[:32]}"', "Accept-Ranges": "bytes"})


def _revision(asked: Asked, repo: Repository, commit: str) -> Answer:
    siblings = [{"rfilename": path} for path in sorted(repo.commits[commit])]
    facts = {"id": "org/name", "sha": commit, "private": repo.is_private, "tags": [], "siblings": siblings}
    return Answer(200, {"Content-Type": "application/json"}, json.dumps(facts).encode())


def _refusal(status: int, code: str, message: str) -> Answer:
    return Answer(status, {"X-Error-Code": code, "X-Error-Message": message}, json.dumps({"error": message}).encode())


def _content(asked: Asked, data: bytes, headers: dict[str, str]) -> Answer:
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked.headers.get("range", ""))
    if found is None or asked.headers.get("if-range", headers["ETag"]) != headers["ETag"]:
        return Answer(200, headers, data)
    first, last = int(found[1]), min(int(found[2] or len(data)), len(data) - 1)
    if first > last:
        return Answer(416, headers | {"Content-Range": f"bytes */{len(data)}"})
    return Answer(206, headers | {"Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first : last + 1])


def _read_head(head: str, at_cdn: bool) -> Asked:
    first, *lines = head.split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Asked(method, target, headers, at_cdn)


def _send(connection: socket.socket, asked: Asked, answer: Answer) -> bool:
    headers = {"Content-Length": str(len(answer.body)), **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    body = b"" if asked.method == "HEAD" else answer.body[: answer.cuts_at]
    if len(body) <= _PIECE:
        connection.sendall(head + body)
    else:
        connection.sendall(head)
        connection.sendall(body)
    return answer.cuts_at is None and asked.headers.get("connection", "") != "close"


def small_files(count: int, size_bytes: int, *, seed: int = 7) -> dict[str, bytes]:
    """Make the content of a repository of many small files, twenty to a folder."""
    random = Random(seed)
    return {f"part-{i // 20:03}/file-{i:05}.json": random.randbytes(size_bytes) for i in range(count)}


def main() -> None:
    """Serve `org/many` and print where, until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--size", type=int, default=4096)
    chosen = parser.parse_args()
    with FakeHub() as hub:
        hub.repository("org/many").commit(small_files(chosen.files, chosen.size))
        print(hub.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
