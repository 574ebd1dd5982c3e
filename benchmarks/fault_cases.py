"""The cases of `download_faults.py`: what the server, the disk or the user does while a program fetches a file.

Most begin alike: the first answer breaks off after five eighths of the file, and what comes then is the case. Who does
not go on by itself is started a second time, as its user would.
"""

from __future__ import annotations

import email.utils
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import fetchers
import peers

sys.path.insert(0, str(peers.CHECKOUT))

from tests.servers import habits as bad
from tests.servers.faulty import Answer, Asked, Habit, Line, Version, well

SIZE = 24 << 20
BROKEN_AT = SIZE * 5 // 8
PAGE = b"<html>please log in</html>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Three versions of one file; two of them are of the same size."""

    one: Version
    two: Version
    short: Version

    @property
    def whole(self) -> tuple[bytes, ...]:
        """What a right file may hold."""
        return self.one.data, self.two.data, self.short.data


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What happens, by name."""

    name: str
    habit: Callable[[Scene], Habit]


def scene() -> Scene:
    pattern = bytes(range(256)) * 4096

    def version(mark: int, size: int) -> Version:
        data = b"".join(bytes([number + mark]) * 64 + pattern[64:] for number in range(SIZE >> 20))
        return version_of(data[:size])

    return Scene(one=version(0, SIZE), two=version(100, SIZE), short=version(200, SIZE - 5_000_000))


def version_of(data: bytes) -> Version:
    """A version as a hub shows it: its digest is its ETag, its commit and size stand beside it."""
    digest = fetchers.sha256_of(data)
    hub = (
        ("X-Repo-Commit", fetchers.COMMIT),
        ("X-Linked-Etag", f'"{digest}"'),
        ("X-Linked-Size", str(len(data))),
    )
    return Version(data=data, etag=f'"{digest}"', extra=hub)


def hub_pages(version: Version) -> dict[str, Version]:
    """What a hub says of the repository that the file is in."""
    digest = fetchers.sha256_of(version.data)
    file = {"type": "file", "path": fetchers.FILE, "oid": "0" * 40, "size": len(version.data)}
    pointer = {"oid": digest, "size": len(version.data), "pointerSize": 134}
    pages = {
        f"revision/{revision}": {"id": fetchers.REPOSITORY, "sha": fetchers.COMMIT, "siblings": []}
        for revision in ("main", fetchers.COMMIT)
    }
    pages |= {f"tree/{revision}": [{**file, "lfs": pointer}] for revision in ("main", fetchers.COMMIT)}
    return {
        f"/api/models/{fetchers.REPOSITORY}/{path}": Version(data=json.dumps(page).encode(), etag=None)
        for path, page in pages.items()
    }


def broken_off(then: Habit) -> Habit:
    """Break off the first answer; give the rest by another habit."""
    return bad.at_first(1, bad.cut(BROKEN_AT), then)


def _limited(asked: Asked, version: Version) -> Answer:
    at = email.utils.formatdate(time.time() + 3, usegmt=True)
    return bad.status(429, Retry_After=at)(asked, version)


CASES = (
    Case(name="body cut at 5/8", habit=lambda _: broken_off(well)),
    Case(name="reset at 5/8", habit=lambda _: bad.at_first(1, bad.cut(BROKEN_AT, Line.reset))),
    Case(name="silence after 5/8", habit=lambda _: bad.at_first(1, bad.stalling(BROKEN_AT))),
    Case(name="range ignored (200)", habit=lambda _: broken_off(bad.ignores_ranges)),
    Case(name="206 starts 1000 bytes early", habit=lambda _: broken_off(bad.to_resumes(bad.shifted(-1000)))),
    Case(
        name="the same, as long as asked",
        habit=lambda _: broken_off(bad.to_resumes(bad.shifted(-1000, as_long=True))),
    ),
    Case(
        name="the same, and says it starts as asked",
        habit=lambda _: broken_off(bad.to_resumes(bad.shifted(-1000, as_long=True, claims_as_asked=True))),
    ),
    Case(
        name="206 without Content-Range, from 0",
        habit=lambda _: broken_off(bad.to_resumes(bad.content_range(None, whole_body=True))),
    ),
    Case(name="206 shorter than its Content-Range", habit=lambda _: broken_off(bad.to_resumes(bad.resized(-1000)))),
    Case(
        name="another total in Content-Range",
        habit=lambda _: broken_off(bad.to_resumes(bad.content_range("bytes {first}-{last}/99999999"))),
    ),
    Case(name="416 to a good offset", habit=lambda _: broken_off(bad.to_resumes(bad.refusing_range()))),
    Case(name="new version, same size", habit=lambda scene: broken_off(bad.serving(scene.two))),
    Case(name="new version, shorter", habit=lambda scene: broken_off(bad.serving(scene.short))),
    Case(
        name="new version, same size, If-Range ignored",
        habit=lambda scene: broken_off(
            lambda asked, _: scene.two.answer(asked.without("If-Range", "If-Match", "If-Unmodified-Since"))
        ),
    ),
    Case(name="login page instead of the rest", habit=lambda _: broken_off(bad.page(PAGE))),
    Case(name="login page at once", habit=lambda _: bad.page(PAGE)),
    Case(name="one bit flipped", habit=lambda _: bad.at_first(1, bad.flipped(SIZE // 3))),
    Case(name="gzip that nobody asked for", habit=lambda _: bad.at_first(1, bad.encoded("gzip"))),
    Case(name="no length, closed early", habit=lambda _: bad.at_first(1, bad.unannounced(BROKEN_AT))),
    Case(name="chunks, cut", habit=lambda _: bad.at_first(1, bad.chunked(is_cut=True))),
    Case(name="429, Retry-After: 3", habit=lambda _: bad.at_first(1, bad.status(429, Retry_After="3"))),
    Case(name="429, Retry-After: a date", habit=lambda _: bad.at_first(1, _limited)),
    Case(name="503 twice", habit=lambda _: bad.at_first(2, bad.status(503))),
)
