"""A client for one hub: the commit of a revision, its files, the facts of one file.

Offline nothing is sent: results come from the cache, as noted at the last query. Queries are cheap, and a commit's
contents are queried only once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

from stoker.core.clock import Clock
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import AuthRefused, BadAnswer, NetworkFailed, NotOnServer, RateLimited, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.retry import NoRetry
from stoker.core.text import format_duration
from stoker.host.folders import check_name
from stoker.host.http.client import at_another_origin, follow
from stoker.host.http.exchange import Headers, HttpClientResponse, Request, origin, shown
from stoker.store.memo import Memo
from stoker.transfer.download.download_events import ConnectionSpeed, retry_of
from stoker.transfer.download.response_rules import (
    RATE_LIMIT_PAUSE_S,
    FailedAttempts,
    decide_again,
    file_size_of,
    given_up,
    is_busy,
    read_count,
    refusal,
    retry_after_s,
)
from stoker.transfer.download.types import DownloadRequest, DownloadStop, DownloadTimeouts, DownloadTools
from stoker.transfer.hub.hub_cache import HubCache
from stoker.transfer.hub.listing import (
    LONGEST_ANSWER_BYTES,
    LONGEST_LISTING_BYTES,
    MAIN,
    MOST_FILES,
    MOST_PAGES,
    HubSettings,
    Repo,
    RepoFile,
    Revision,
    check_revision,
    choose,
    file_url,
    is_commit,
    read_commit,
    read_entries,
    read_licence,
    read_next,
    revision_url,
    tree_url,
)

# Read the body of a small response to its end; a slow or endless one is aborted.

LONGEST_S = 600.0
"""Time limit of a small response, even if its speed is above the minimum."""


def pieces_of(
    reply: HttpClientResponse, at_most_bytes: int, *, clock: Clock, patience: DownloadTimeouts
) -> Iterator[bytes]:
    """Return the body piece by piece. Raises `NetworkFailed` if it is too slow, and what `reply` raises."""
    began_s = clock.monotonic_s()
    pace = ConnectionSpeed(began_s, patience)
    while piece := reply.read(at_most_bytes):
        now_s = clock.monotonic_s()
        pace.got(len(piece), now_s)
        yield piece
        complaint = pace.complaint
        if now_s - began_s > LONGEST_S:
            complaint = f"the response did not end within {format_duration(LONGEST_S)}"
        if complaint:
            raise NetworkFailed(f"{complaint}: {shown(reply.url)}", reason="too_slow")


# A hub's refusals: the error of the status, with the hub's own reason and hint.

_ABSENT = {
    "RepoNotFound": ("no such repository", "check the spelling"),
    "RevisionNotFound": ("no such revision", "check the branch, tag or commit"),
    "EntryNotFound": ("no such file in that revision", "check the name"),
}


def is_passing(status: int) -> bool:
    """Return True if a later request to the hub may succeed. 501 (not implemented) is permanent."""
    return is_busy(status) and status != 501


def explained(error: StokerError, url: str, what: str, *, has_token: bool) -> StokerError:
    """Return an error of `download.response_rules` with the hub's message and hint; any other unchanged.

    `url` is the requested address, `what` its name for messages.
    """
    status, code = error.data.get("status"), error.data.get("error_code")
    data = {**error.data, "url": shown(url)}
    if code == "GatedRepo":
        hint = f"accept its terms at {_page(url)}, then {_token_hint(has_token=has_token)}"
        return AuthRefused(f"{what}: this repository is gated", hint=hint, **data)
    if isinstance(error, AuthRefused):
        unknown = f"{what}: no such repository, or it is private ({status})"
        hint = f"check the spelling; if it is private, {_token_hint(has_token=has_token)}"
        return AuthRefused(unknown if code == "RepoNotFound" else error.message, hint=hint, **data)
    if isinstance(error, NotOnServer) and code in _ABSENT:
        message, hint = _ABSENT[code]
        return NotOnServer(f"{what}: {message} ({status})", hint=hint, reason=code, **data)
    if isinstance(error, NotOnServer) and status != 451:
        return NotOnServer(error.message, hint="check the name and the revision", **data)
    if isinstance(error, RateLimited) and not has_token:
        return RateLimited(error.message, hint=f"{error.hint}; with a token a hub allows more", **data)
    return error


def _token_hint(*, has_token: bool) -> str:
    return "use a token whose owner may read it (HF_TOKEN)" if has_token else "set HF_TOKEN to a token that may read it"


def _page(url: str) -> str:
    """Return the page of the repository that an address of the hub belongs to."""
    path = shown(url).removeprefix(str(origin(url)))
    return f"{origin(url)}{path.partition('/resolve/')[0]}"


# Small requests to a hub: retried within the timeouts, responses limited in size.
#
# Redirects are followed without credentials where they lead to another server (`host.http.client`). The head of a
# file's response is only taken from the hub itself.

_NO_SUCH_ROUTE = frozenset({404, 405, 501})
_PIECE_BYTES = 1 << 16


@frozen
class HubResponse:
    """The head of a response, and its body if requested."""

    status: int
    headers: Headers
    body: bytes = b""


class HubClient:
    """Queries one hub, with one set of credentials. Thread-safe."""

    def __init__(
        self,
        headers: Mapping[str, str],
        *,
        tools: DownloadTools,
        patience: DownloadTimeouts,
        stop: DownloadStop,
        has_token: bool,
        is_hub: bool = False,
    ) -> None:
        """`is_hub`: the address is the configured hub."""
        self._headers = headers
        self._is_hub = is_hub
        self._tools = tools
        self._patience = patience
        self._stop = stop
        self._has_token = has_token

    def get(self, url: str, what: str) -> HubResponse | None:
        """Send a request and read the whole response; None if this server has no such route.

        `what` names it in messages. Raises the errors of `explained`, `NetworkFailed`, `BadAnswer`.
        """
        request = Request(url=url, headers={**self._headers, "Accept": "application/json"})
        answer = self._ask(what, lambda: self._read(request))
        # A hub states the reason in a header of its own; any other server just has no such page.
        if answer.status in _NO_SUCH_ROUTE and answer.headers.get("X-Error-Code") is None:
            return None
        return self._accepted(answer, url, what)

    def head(
        self, url: str, what: str, *, accepts: frozenset[int] = frozenset(), first_byte: bool = False
    ) -> HubResponse:
        """Request only the head of a file's response. `first_byte`: by a GET of one byte, if HEAD is refused.

        Statuses in `accepts` are returned instead of raised.
        """
        ranged = {"Range": "bytes=0-0"} if first_byte else {}
        request = Request(url=url, method="GET" if first_byte else "HEAD", headers={**self._headers, **ranged})
        answer = self._ask(what, lambda: self._glance(request))
        return answer if answer.status in accepts else self._accepted(answer, url, what)

    def _accepted(self, answer: HubResponse, url: str, what: str) -> HubResponse:
        if answer.status < 400:
            return answer
        raise explained(refusal(what, answer.status, answer.headers), url, what, has_token=self._has_token)

    def _ask(self, what: str, ask: Callable[[], HubResponse]) -> HubResponse:
        clock = self._tools.clock
        began_s = clock.monotonic_s()
        tries = FailedAttempts()
        while True:
            self._stop.check()
            got = self._try(ask)
            if isinstance(got, HubResponse) and not is_passing(got.status):
                return got
            error = refusal(what, got.status, got.headers) if isinstance(got, HubResponse) else got
            tries = tries.after(error, has_progress=False)
            decided = decide_again(
                self._patience,
                tries,
                silent_s=clock.monotonic_s() - began_s,
                wait_s=self._asked_wait_s(got),
                jitter=self._tools.jitter(),
            )
            if isinstance(decided, NoRetry):
                if isinstance(got, HubResponse):
                    return got
                # The user chose this hub and can choose another one.
                got.data["is_hub"] = self._is_hub
                raise given_up(got, decided)
            self._say_retry(what, decided.delay_s, got, tries.idle)
            self._stop.sleep(decided.delay_s, clock)

    def _try(self, ask: Callable[[], HubResponse]) -> HubResponse | NetworkFailed:
        try:
            return ask()
        except NetworkFailed as error:
            self._stop.check()
            if error.data.get("is_lasting"):
                raise
            return error

    def _asked_wait_s(self, got: HubResponse | NetworkFailed) -> float | None:
        if not isinstance(got, HubResponse):
            return None
        longest_s = self._patience.longest_retry_after_s
        wait_s = retry_after_s(got.headers, now_s=self._tools.clock.wall_s(), longest_s=longest_s)
        return RATE_LIMIT_PAUSE_S if wait_s is None and got.status == 429 else wait_s

    def _read(self, request: Request) -> HubResponse:
        transport = self._tools.transport
        with self._stop.cutting(transport.abort), closing(follow(transport, request).reply) as reply:
            return HubResponse(status=reply.status, headers=reply.headers, body=self._bounded(reply))

    def _bounded(self, reply: HttpClientResponse) -> bytes:
        pieces, size_bytes = [], 0
        for piece in pieces_of(reply, _PIECE_BYTES, clock=self._tools.clock, patience=self._patience):
            size_bytes += len(piece)
            if size_bytes > LONGEST_ANSWER_BYTES:
                raise BadAnswer(
                    f"the response is too long: {shown(reply.url)}", hint="is this a hub? check the address"
                )
            pieces.append(piece)
        return b"".join(pieces)

    def _glance(self, request: Request) -> HubResponse:
        transport = self._tools.transport
        with self._stop.cutting(transport.abort):
            followed = follow(transport, request, stops_at=at_another_origin)
            with closing(followed.reply) as reply:
                return HubResponse(status=reply.status, headers=reply.headers)

    def _say_retry(self, what: str, wait_s: float, got: HubResponse | NetworkFailed, attempt: int) -> None:
        why = f"the server returned {got.status}" if isinstance(got, HubResponse) else got.message
        reason = str(got.status) if isinstance(got, HubResponse) else str(got.data.get("reason", ""))
        self._tools.say(retry_of(what, wait_s=wait_s, msg=f"{what}: {why}", reason=reason, attempt=attempt))


# The metadata of one file: by HEAD, or by a request for one byte if HEAD is refused.
#
# A hub states the metadata itself and redirects to a content network for the bytes. The metadata are those of the hub's
# own response, so a redirect to another server is not followed. Only a hub's ETags are digests; those of any other
# server are opaque.

_REFUSED_HEAD = frozenset({403, 405, 501})
_SHA1 = re.compile(r"[0-9a-f]{40}")


def look(asker: HubClient, url: str, path: str, what: str) -> tuple[RepoFile, str]:
    """Query the metadata of one file, and its commit if the server has commits.

    Raises what `HubClient` raises; a size that the server does not state stays unknown.
    """
    answer = asker.head(url, what, accepts=_REFUSED_HEAD)
    if answer.status in _REFUSED_HEAD and answer.headers.get("X-Error-Code") is None:
        answer = asker.head(url, what, first_byte=True)
    return read_file(url, path, answer)


def read_file(url: str, path: str, answer: HubResponse) -> tuple[RepoFile, str]:
    """Parse a file and its commit from the headers of a response. Raises `BadAnswer` if they are invalid."""
    headers = answer.headers
    commit = headers.get("X-Repo-Commit") or ""
    if commit and not is_commit(commit):
        raise BadAnswer(f"the server returned an invalid commit: {shown(url)}")
    etag = headers.get("X-Linked-Etag") or headers.get("ETag") or ""
    name = etag.strip().strip('"') if commit and not etag.startswith("W/") else ""
    xet_hash = headers.get("X-Xet-Hash") or ""
    file = RepoFile(
        path=path,
        size_bytes=_size(answer, url),
        sha256=Digest(name) if is_digest(name) else None,
        git_sha1=name if _SHA1.fullmatch(name) else "",
        xet_hash=xet_hash if is_digest(xet_hash) else "",
    )
    return file, commit


def _size(answer: HubResponse, url: str) -> int | None:
    linked = answer.headers.get("X-Linked-Size")
    size_bytes = file_size_of(answer.status, answer.headers) if linked is None else read_count(linked)
    if isinstance(size_bytes, str) or (linked is not None and size_bytes is None):
        raise BadAnswer(f"the server returned an invalid size: {shown(url)}")
    return size_bytes


class Hub:
    """One hub and its cache, with everything that a download needs. Thread-safe."""

    def __init__(
        self, settings: HubSettings, *, tools: DownloadTools, patience: DownloadTimeouts, stop: DownloadStop, memo: Memo
    ) -> None:
        self.settings = settings
        self.cache = HubCache(settings.cache)
        self.tools = tools
        self.patience = patience
        self.stop = stop
        self.memo = memo
        self.headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else {}
        self._listings: dict[tuple[Repo, str], tuple[RepoFile, ...]] = {}
        self.has_token = bool(settings.token)
        self._asker = HubClient(
            self.headers, tools=tools, patience=patience, stop=stop, has_token=self.has_token, is_hub=True
        )

    def resolve(self, repo: Repo, revision: str = MAIN) -> Revision:
        """Return the current commit of a revision. Everything after that names the commit, which can't change.

        A plain mirror, which has no such route, returns a revision without commit. Raises `NotOnServer` for an unknown
        repository or revision, `AuthRefused` if a token is missing or its terms are not accepted.
        """
        check_revision(revision)
        if is_commit(revision):
            return Revision(asked=revision, commit=revision)
        if self.settings.offline:
            return Revision(asked=revision, commit=self._noted_commit(repo, revision))
        url = revision_url(self.settings.endpoint, repo, revision)
        answer = self._asker.get(url, f"{repo} at {revision}")
        if answer is None:
            return Revision(asked=revision, commit="")
        return Revision(asked=revision, commit=read_commit(answer.body, url))

    def files(self, repo: Repo, commit: str) -> tuple[RepoFile, ...]:
        """Return every file of a commit, sorted, as the server lists them.

        Raises `NotOnServer` if there is none, or if the server has no listings: a plain mirror serves files by name
        only (`file`).
        """
        noted = self._listings.get((repo, commit)) or self.cache.read_tree(repo, commit)
        if noted:
            return noted
        if self.settings.offline:
            return self._snapshot_files(repo, commit)
        return self._listed(repo, commit)

    def file(self, repo: Repo, revision: str, path: str) -> tuple[RepoFile, str]:
        """Query one file by name, and its commit if the server has commits.

        For a mirror without listings, and for a file whose commit is unknown. Offline it is looked up in the cache.
        Raises `BadInput` for an unsafe name.
        """
        check_name(path)
        url = file_url(self.settings.endpoint, repo, check_revision(revision), path)
        if self.settings.offline:
            commit = self.resolve(repo, revision).commit
            found = next((file for file in self.files(repo, commit) if file.path == path), None)
            if found is None:
                raise self._absent(f"{repo} at {revision} has no {path}")
            return found, commit
        return look(self._asker, url, path, label_of(repo, path))

    def named_files(
        self, repo: Repo, revision: Revision, names: Sequence[str]
    ) -> tuple[Revision, tuple[RepoFile, ...]]:
        """Query files one by one, if the server has no listings. All are of one commit, if the server has commits.

        The first response states the commit, and the others are requested at that commit: a branch may move meanwhile.
        """
        files: list[RepoFile] = []
        for name in names:
            file, commit = self.file(repo, revision.commit or revision.asked, name)
            revision = changed(revision, commit=revision.commit or commit)
            files.append(file)
        return revision, tuple(files)

    def wanted(self, repo: Repo, revision: str, file: RepoFile) -> DownloadRequest:
        """Return the request for a file; `revision` is a commit if the server has commits."""
        return DownloadRequest(
            url=file_url(self.settings.endpoint, repo, revision, file.path),
            label=label_of(repo, file.path),
            commit=revision if is_commit(revision) else "",
            size_bytes=file.size_bytes,
            sha256=file.sha256,
            git_sha1=file.git_sha1,
            headers=self.headers,
        )

    def headers_for(self, url: str) -> dict[str, str]:
        """Return the headers for a URL: the token, if it is a URL of this hub."""
        return dict(self.headers) if self._has(url) else {}

    def explained(self, error: StokerError, url: str, what: str) -> StokerError:
        """Return an error with the hub's message and hint, if it is about a URL of this hub."""
        return explained(error, url, what, has_token=self.has_token) if self._has(url) else error

    def size_at(self, url: str, name: str) -> int | None:
        """Query the size of the file at a URL; None if it is not stated. Raises what `HubClient` raises."""
        headers = self.headers_for(url)
        asker = HubClient(headers, tools=self.tools, patience=self.patience, stop=self.stop, has_token=bool(headers))
        return look(asker, url, name, name)[0].size_bytes

    def licence(self, repo: Repo, commit: str) -> str:
        """Return the licence in a repository's card; empty if the server states none."""
        if self.settings.offline:
            return ""
        url = revision_url(self.settings.endpoint, repo, commit)
        answer = self._asker.get(url, f"{repo} at {commit[:12]}")
        return "" if answer is None else read_licence(answer.body, url)

    def note_listing(self, repo: Repo, commit: str) -> None:
        """Store the listing of a commit in the cache, if it was queried just now: other programs read it there."""
        listed = self._listings.get((repo, commit))
        if listed is not None:
            self.cache.write_tree(repo, commit, listed)

    def _has(self, url: str) -> bool:
        return origin(url) == origin(self.settings.endpoint)

    def _listed(self, repo: Repo, commit: str) -> tuple[RepoFile, ...]:
        files: list[RepoFile] = []
        url = tree_url(self.settings.endpoint, repo, commit)
        asked: set[str] = set()
        came_bytes = 0
        while url:
            is_too_much = len(files) > MOST_FILES or came_bytes > LONGEST_LISTING_BYTES
            if url in asked or len(asked) >= MOST_PAGES or is_too_much:
                raise BadAnswer(f"the listing of {repo} is too long", hint="is this a hub? check the address")
            asked.add(url)
            answer = self._asker.get(url, f"{repo} at {commit[:12]}")
            if answer is None:
                hint = "name the files: this server does not list them"
                raise NotOnServer(f"the server lists no files of {repo}", hint=hint, repo=str(repo))
            came_bytes += len(answer.body)
            files += read_entries(answer.body, url)
            url = read_next(answer.headers.all("Link"), url)
        if not files:
            raise NotOnServer(f"{repo} has no files at {commit[:12]}", hint="check the revision", repo=str(repo))
        listed = self._listings[repo, commit] = tuple(sorted(files, key=lambda file: file.path))
        return listed

    def _noted_commit(self, repo: Repo, revision: str) -> str:
        commit = self.cache.read_ref(repo, revision)
        if not commit:
            raise self._absent(f"{repo} at {revision} is not in the cache")
        return commit

    def _snapshot_files(self, repo: Repo, commit: str) -> tuple[RepoFile, ...]:
        files = self.cache.read_snapshot(repo, commit)
        if not files:
            raise self._absent(f"{repo} at {commit[:12]} is not in the cache")
        return files

    def _absent(self, message: str) -> NotOnServer:
        return NotOnServer(message, cache=self.cache.root, reason="offline")


def label_of(repo: Repo, path: str) -> str:
    """Return the display name of a file of a repository."""
    return f"{repo}: {path}"


# A repository, a revision and some names, resolved at the hub once.


@frozen
class RepoListing:
    """The selected files of a repository, at the resolved commit."""

    repo: Repo
    revision: Revision
    files: tuple[RepoFile, ...]

    @property
    def labels(self) -> list[str]:
        return [label_of(self.repo, file.path) for file in self.files]


def find_files(
    hub: Hub,
    repo: Repo,
    revision: str,
    *,
    names: Sequence[str] = (),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> RepoListing:
    """Resolve a revision, and select from its files as `choose` does.

    A server without listings is queried for each name; some state the commit with each file. Raises what `Hub` and
    `choose` raise, and `NotOnServer` if such a server is given no names.
    """
    found = hub.resolve(repo, revision)
    if found.commit:
        listed = hub.files(repo, found.commit)
    elif names:
        found, listed = hub.named_files(repo, found, names)
    else:
        raise NotOnServer(f"the server lists no files of {repo}", hint="name the files: this server does not list them")
    return RepoListing(repo=repo, revision=found, files=choose(listed, names=names, include=include, exclude=exclude))
