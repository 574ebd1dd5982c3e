"""A hub's responses about a repository, parsed as untrusted input; names and URLs of repositories; settings of a hub.

Commits and digests must have their exact form, sizes must be counts, and the next page must be on the same server. File
names are checked once the requested files are known (`check_names`), before anything is written, all bad ones at once.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote

from stoker.core.digests import Digest, is_digest
from stoker.core.errors import BadAnswer, BadInput, NotOnServer
from stoker.core.frozen import frozen
from stoker.core.text import did_you_mean, one_line
from stoker.host.folders import clashes, name_fault, shown_name
from stoker.host.http.exchange import joined, origin, read_address, shown

# Names of repositories and revisions, and their URLs.
#
# Each of them becomes a part of a URL and of a path, so an ambiguous name is refused before anything is sent or
# written. Files that a repository lists are checked elsewhere (`host.folders`).

MAIN = "main"
"""The default revision."""

DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".txt", ".md", ".gz", ".zst")
"""Suffixes of files with data, which no name of a data set has."""

_KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[A-Za-z0-9_@+=#%,~-][A-Za-z0-9._@+=#%,~/-]*")
_LONGEST_NAME = 96
_LONGEST_REVISION = 200


@frozen
class Repo:
    """A repository by its kind (model, dataset, space) and its name, `org/name` or just `name`."""

    kind: str = "model"
    name: str

    @property
    def prefix(self) -> str:
        """The prefix of its name in a URL and in arguments."""
        return "" if self.kind == "model" else f"{self.kind}s/"

    @property
    def folder(self) -> str:
        """Its folder in the cache: `models--org--name`."""
        return "--".join([f"{self.kind}s", *self.name.split("/")])

    def __str__(self) -> str:
        return f"{self.prefix}{self.name}"


def read_repo(text: str) -> Repo:
    """Parse `org/name`, `datasets/org/name`, with or without `hf://`. Raises `BadInput`."""
    head, _, rest = text.removeprefix("hf://").rstrip("/").partition("/")
    kind, name = (_KINDS[head], rest) if head in _KINDS and rest else ("model", f"{head}/{rest}" if rest else head)
    parts = name.split("/")
    is_plain = len(parts) <= 2 and all(_PART.fullmatch(part) for part in parts)
    if not is_plain or "--" in name or ".." in name or name.endswith(".git") or len(name) > _LONGEST_NAME:
        hint = "write org/name, or datasets/org/name: letters, digits, '-', '_' and '.', never '--' or '..'"
        raise BadInput(f"not the name of a repository: {text!r}", hint=hint, repo=text)
    return Repo(kind=kind, name=name)


def read_repo_at(text: str) -> tuple[Repo, str]:
    """Parse `org/name@revision`, or `org/name` at its main revision. Raises `BadInput`."""
    name, _, revision = text.partition("@")
    return read_repo(name), check_revision(revision or MAIN)


def may_be_data_set(text: str, folder: str) -> bool:
    """Return True if a text may name a data set, with or without `datasets/` before it, and is no path.

    Below an existing folder, of `folder` or of the current one, a missing name is a typo.
    """
    name = text.partition("@")[0].rstrip("/").removeprefix("datasets/")
    is_path = text.startswith(("/", ".", "~")) or name.lower().endswith(DATA_SUFFIXES) or os.path.lexists(text)
    if "/" not in name or is_path or os.path.isdir(os.path.join(folder, name.partition("/")[0])):
        return False
    try:
        read_repo_at(f"datasets/{text.removeprefix('datasets/')}")
    except BadInput:
        return False
    return True


def check_revision(text: str) -> str:
    """Return a branch, tag, `refs/pr/N` or commit if it is safe in a URL and below a folder. Raises `BadInput`."""
    parts = text.split("/")
    is_plain = _REVISION.fullmatch(text) is not None and len(text) <= _LONGEST_REVISION
    if not is_plain or ".." in text or any(not part.strip(".") or part.endswith((".", ".lock")) for part in parts):
        raise BadInput(f"not a revision: {text!r}", hint="use a branch, a tag or a commit", revision=text)
    return text


def is_commit(text: str) -> bool:
    """Return True if a text is a full commit id, which never changes its meaning."""
    return _COMMIT.fullmatch(text) is not None


def check_endpoint(text: str) -> str:
    """Return the URL of a hub without its last slash. Raises `BadInput`."""
    address = read_address(text)
    if address.authorization or "?" in address.target or "#" in text:
        hint = "use http(s)://host[:port][/path]; the token is set by HF_TOKEN"
        raise BadInput(f"not the address of a hub: {shown(text)}", hint=hint)
    return address.url.rstrip("/")


def revision_url(endpoint: str, repo: Repo, revision: str) -> str:
    """Return the URL of a revision's commit."""
    return f"{endpoint}/api/{repo.kind}s/{repo.name}/revision/{quote(revision, safe='')}"


def tree_url(endpoint: str, repo: Repo, commit: str) -> str:
    """Return the URL of the list of files of a commit."""
    return f"{endpoint}/api/{repo.kind}s/{repo.name}/tree/{quote(commit, safe='')}?recursive=true&expand=false"


def file_url(endpoint: str, repo: Repo, revision: str, path: str) -> str:
    """Return the URL of one file of a revision."""
    return f"{endpoint}/{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"


# The files of a repository at one commit.


@frozen
class Revision:
    """A requested revision, and its commit at the time of the query. Only the commit counts from then on."""

    asked: str
    commit: str
    """Empty if the server is a plain mirror without commits."""


@frozen
class RepoFile:
    """One file of a repository, as the hub lists it."""

    path: str
    """`/`-separated, as the server states it: checked by the rules of `host.folders` before anything is written."""
    size_bytes: int | None = None
    sha256: Digest | None = None
    """Of large files."""
    git_sha1: str = ""
    """Of the git blob (header and content), of files stored in git itself."""
    pointer_sha1: str = ""
    """Of the pointer that git stores in place of a large file. Does not identify its bytes."""
    xet_hash: str = ""
    """Key of its bytes in the cache's shared store."""

    @property
    def blob(self) -> str:
        """The name of its bytes in the cache: their digest. Empty if the server states none."""
        return self.sha256 or self.git_sha1


# Selection of files of a repository: by name, by pattern, or all of them.
#
# Patterns are those of the hub's own client: `*` also matches `/`, case counts, and a pattern that ends with `/` means
# everything below that folder.


def choose(
    files: Sequence[RepoFile],
    *,
    names: Sequence[str] = (),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> tuple[RepoFile, ...]:
    """Return the selected files, in the repository's order.

    A name is a file's path, a folder with a `/` at its end, or a pattern; a file must match one of the names, one of
    `include` and none of `exclude`. Raises `NotOnServer` with all names and patterns that match nothing, and `BadInput`
    if no file is left.
    """
    paths = [file.path for file in files]
    known = set(paths)
    idle = [text for text in (*names, *include) if text not in known and not any(map(_Texts([text]).fit, paths))]
    if idle:
        message = f"the repository has no {', '.join(map(repr, idle))}"
        is_folder = any(path.startswith(f"{idle[0]}/") for path in paths)
        hint = f"{idle[0]}/ is a folder: write {idle[0]}/" if is_folder else did_you_mean(idle[0], paths)
        raise NotOnServer(message, hint=hint, missing=idle, reason="EntryNotFound")
    wanted = [_Texts(texts) for texts in (names, include) if texts]
    unwanted = _Texts(exclude)
    chosen = tuple(
        file for file in files if all(texts.fit(file.path) for texts in wanted) and not unwanted.fit(file.path)
    )
    if not chosen and files:
        raise BadInput("no file is selected", hint="names and patterns exclude every file", files=len(files))
    return chosen


def fitting(files: Sequence[RepoFile], texts: Sequence[str]) -> tuple[RepoFile, ...]:
    """Return the files that match one of some names and patterns; those without a slash mean a repository's top."""
    at_top, below = (_Texts([text for text in texts if ("/" in text) is is_below]) for is_below in (False, True))
    return tuple(file for file in files if (below if "/" in file.path else at_top).fit(file.path))


class _Texts:
    """Names and patterns for paths. A path matches itself, whatever characters it has."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._names = frozenset(texts)
        self._patterns = [
            f"{text}*" if text.endswith("/") else text for text in texts if text.endswith("/") or set(text) & set("*?[")
        ]

    def fit(self, path: str) -> bool:
        return path in self._names or any(fnmatchcase(path, pattern) for pattern in self._patterns)


LONGEST_ANSWER_BYTES = 8 * 1024 * 1024
LONGEST_LISTING_BYTES = 256 * 1024 * 1024
"""Limit of all pages together."""
MOST_FILES = 1_000_000
MOST_PAGES = 10_000

_LARGEST_FILE_BYTES = 1 << 60
_SHOWN_FAULTS = 3
_KEPT_FAULTS = 100
_LONGEST_LICENCE = 100
_NEXT = re.compile(r'<([^<>]*)>[^,<]*;\s*rel="?next"?(?:[\s;,]|$)')
_SHA1 = re.compile(r"[0-9a-f]{40}")


def read_commit(body: bytes, url: str) -> str:
    """Parse the commit of a revision from a response. Raises `BadAnswer`."""
    answer = _decoded(body, url)
    commit = answer.get("sha") if isinstance(answer, dict) else None
    if not isinstance(commit, str) or not is_commit(commit):
        raise BadAnswer(f"the server returned no commit: {shown(url)}", hint="is this a hub? check the address")
    return commit


def read_licence(body: bytes, url: str) -> str:
    """Parse the licence in a repository's card from a response about a revision; empty if there is none."""
    answer = _decoded(body, url)
    card = answer.get("cardData") if isinstance(answer, dict) else None
    licence = card.get("license") if isinstance(card, dict) else None
    return one_line(licence, _LONGEST_LICENCE) if isinstance(licence, str) else ""


def read_entries(body: bytes, url: str) -> list[RepoFile]:
    """Parse the files on one page of a listing; their names are not checked yet. Raises `BadAnswer`."""
    answer = _decoded(body, url)
    if not isinstance(answer, list):
        raise BadAnswer(f"the server's listing is not a list: {shown(url)}", hint="is this a hub? check the address")
    return [read_entry(entry, url) for entry in answer if not _is_folder(entry)]


def read_next(links: Iterable[str], url: str) -> str:
    """Return the URL of the next page from the Link headers of a page; empty if there is none. Raises `BadAnswer`."""
    found = next((match[1] for link in links if (match := _NEXT.search(link))), "")
    if not found:
        return ""
    following = joined(url, found)
    try:
        is_same = origin(following) == origin(url)
    except BadInput:
        is_same = False
    if not is_same:
        raise BadAnswer(f"the next page of a listing is on another server: {shown(url)}", next=shown(following))
    return following


def read_entry(entry: Any, where: str) -> RepoFile:
    """Parse one file of a listing. Raises `BadAnswer`."""
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise BadAnswer(f"a file without a name in the listing: {shown(where)}")
    large = entry.get("lfs")
    if large is not None and not isinstance(large, dict):
        raise _bad(entry, "lfs", where)
    size_bytes = large.get("size", entry.get("size")) if large else entry.get("size")
    if type(size_bytes) is not int or not 0 <= size_bytes <= _LARGEST_FILE_BYTES:
        raise _bad(entry, "size", where)
    sha256 = large.get("oid") if large else None
    if large and not (isinstance(sha256, str) and is_digest(sha256)):
        raise _bad(entry, "lfs.oid", where)
    oid = entry.get("oid")
    git_sha1 = oid if isinstance(oid, str) and _SHA1.fullmatch(oid) else ""
    if not large and not git_sha1:
        raise _bad(entry, "oid", where)
    xet_hash = entry.get("xetHash")
    return RepoFile(
        path=entry["path"],
        size_bytes=size_bytes,
        sha256=Digest(sha256) if isinstance(sha256, str) else None,
        git_sha1="" if large else git_sha1,
        pointer_sha1=git_sha1 if large else "",
        xet_hash=xet_hash if isinstance(xet_hash, str) and is_digest(xet_hash) else "",
    )


def check_names(files: Sequence[RepoFile], repo: Repo) -> None:
    """Raise `BadAnswer` if a repository has unsafe names, with the number of all of them."""
    counts = Counter(file.path for file in files)
    bad = {path: fault for path in counts if (fault := name_fault(path))}
    faults = [f"{shown_name(path)}: {fault}" for path, fault in bad.items()]
    faults += [f"{shown_name(path)}: listed {count} times" for path, count in counts.items() if count > 1]
    groups = clashes(path for path in counts if path not in bad)
    faults += [f"{' and '.join(map(shown_name, group[:2]))}: one file on some machines" for group in groups]
    if faults:
        listed = "; ".join(faults[:_SHOWN_FAULTS]) + (" …" if len(faults) > _SHOWN_FAULTS else "")
        message = f"{repo} has {len(faults)} unsafe names: {listed}"
        raise BadAnswer(message, hint="nothing was written", faults=faults[:_KEPT_FAULTS], reason="bad_names")


def _is_folder(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("type", "file") != "file"


def _decoded(body: bytes, url: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(
            f"the server's response is not JSON: {shown(url)}", hint="is this a hub? check the address"
        ) from error


def _bad(entry: dict[str, Any], field: str, where: str) -> BadAnswer:
    return BadAnswer(f"the listing's {field} of {shown_name(entry['path'])} is invalid: {shown(where)}")


# Settings of the hub: its URL, cache and token, by the variables that the hub's own client reads.

# The token: from the environment, otherwise from the file that `hf auth login` writes.

_NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def read_token(environment: Mapping[str, str], path: str, read_text: Callable[[str], str | None]) -> str:
    """Return the token; empty if there is none.

    HF_HUB_DISABLE_IMPLICIT_TOKEN disables it. Raises `BadInput`, without the token, if it is not valid in a header.
    """
    if is_true(environment.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")):
        return ""
    for name in _NAMES:
        if token := environment.get(name, "").strip():
            return _checked(token, name)
    return _checked((read_text(path) or "").strip(), path)


def is_true(value: str | None) -> bool:
    """Return True if a variable of the hub's client is on."""
    return (value or "").upper() in _TRUE


def _checked(token: str, source: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadInput(f"invalid token in {source}", hint="a token is one word; hf auth login writes a new one")
    return token


HUB = "https://huggingface.co"


@frozen
class HubSettings:
    """The settings of a hub."""

    endpoint: str = HUB
    cache: str
    token: str = ""
    """A secret: sent to the endpoint's own origin, never shown."""
    offline: bool = False
    symlinks: bool = True
    """True if a snapshot may have symbolic links; a file system without links gets copies anyway."""

    def __repr__(self) -> str:
        token = "set" if self.token else "none"
        return f"HubSettings(endpoint={self.endpoint!r}, cache={self.cache!r}, token={token}, offline={self.offline})"


def read_hub_settings(
    environment: Mapping[str, str], *, home: str, read_text: Callable[[str], str | None], endpoint: str = ""
) -> HubSettings:
    """Read the settings from environment variables.

    `home` is the user's folder, `read_text` returns a small file's content or None, `endpoint` is from the command line
    and has priority. Raises `BadInput` for an invalid URL.
    """

    def path(name: str, otherwise: str) -> str:
        return _expanded(environment.get(name) or otherwise, environment, home)

    caches = environment.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    hub_home = path("HF_HOME", os.path.join(caches, "huggingface"))
    older = environment.get("HUGGINGFACE_HUB_CACHE") or os.path.join(hub_home, "hub")
    return HubSettings(
        endpoint=check_endpoint(endpoint or environment.get("HF_ENDPOINT") or HUB),
        cache=path("HF_HUB_CACHE", older),
        token=read_token(environment, path("HF_TOKEN_PATH", os.path.join(hub_home, "token")), read_text),
        offline=is_true(environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE")),
        symlinks=not is_true(environment.get("HF_HUB_DISABLE_SYMLINKS")),
    )


def _expanded(text: str, environment: Mapping[str, str], home: str) -> str:
    """Expand `~` and `$NAME` from parameters, as the hub's client does from its environment."""
    if text == "~" or text.startswith("~/"):
        text = home + text[1:]

    def value(found: re.Match[str]) -> str:
        return environment.get(found[1] or found[2], found[0])

    return os.path.abspath(re.sub(r"\$(?:(\w+)|\{([^}]*)\})", value, text))
