"""Names of repositories and revisions, and the addresses of what they hold.

Everything here ends up in a URL and in a path, so a name that could mean something else in either is refused before
anything is sent or written. Files that a repository lists are checked elsewhere (`host.names`).
"""

from __future__ import annotations

import re
from urllib.parse import quote

from stoker.host.http.addresses import read_address, shown
from stoker.model.errors import BadInput
from stoker.model.frozen import frozen

MAIN = "main"
"""The revision that is meant when none is named."""

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
        """What stands before its name in a URL and in what people write."""
        return "" if self.kind == "model" else f"{self.kind}s/"

    @property
    def folder(self) -> str:
        """Its folder in the cache: `models--org--name`."""
        return "--".join([f"{self.kind}s", *self.name.split("/")])

    def __str__(self) -> str:
        return f"{self.prefix}{self.name}"


def read_repo(text: str) -> Repo:
    """Read `org/name`, `datasets/org/name` or `hf://` before either. Raises `BadInput`."""
    head, _, rest = text.removeprefix("hf://").rstrip("/").partition("/")
    kind, name = (_KINDS[head], rest) if head in _KINDS and rest else ("model", f"{head}/{rest}" if rest else head)
    parts = name.split("/")
    is_plain = len(parts) <= 2 and all(_PART.fullmatch(part) for part in parts)
    if not is_plain or "--" in name or ".." in name or name.endswith(".git") or len(name) > _LONGEST_NAME:
        hint = "write org/name, or datasets/org/name: letters, digits, '-', '_' and '.', never '--' or '..'"
        raise BadInput(f"not the name of a repository: {text!r}", hint=hint, repo=text)
    return Repo(kind=kind, name=name)


def read_repo_at(text: str) -> tuple[Repo, str]:
    """Read `org/name@revision`, or `org/name`, which means its main one. Raises `BadInput`."""
    name, _, revision = text.partition("@")
    return read_repo(name), check_revision(revision or MAIN)


def check_revision(text: str) -> str:
    """Give a branch, tag, `refs/pr/N` or commit back if it is safe in a URL and below a folder. Raises `BadInput`."""
    parts = text.split("/")
    is_plain = _REVISION.fullmatch(text) is not None and len(text) <= _LONGEST_REVISION
    if not is_plain or ".." in text or any(not part.strip(".") or part.endswith((".", ".lock")) for part in parts):
        raise BadInput(f"not a revision: {text!r}", hint="give a branch, a tag or a commit", revision=text)
    return text


def is_commit(text: str) -> bool:
    """Say whether a text is a full commit id, which never changes what it means."""
    return _COMMIT.fullmatch(text) is not None


def check_endpoint(text: str) -> str:
    """Give the address of a hub without its last slash. Raises `BadInput`."""
    address = read_address(text)
    if address.authorization or "?" in address.target or "#" in text:
        hint = "give http(s)://host[:port][/path]; a token belongs into HF_TOKEN"
        raise BadInput(f"not the address of a hub: {shown(text)}", hint=hint)
    return address.url.rstrip("/")


def revision_url(endpoint: str, repo: Repo, revision: str) -> str:
    """Give where a hub says which commit a revision is."""
    return f"{endpoint}/api/{repo.kind}s/{repo.name}/revision/{quote(revision, safe='')}"


def tree_url(endpoint: str, repo: Repo, commit: str) -> str:
    """Give where a hub lists every file of a commit."""
    return f"{endpoint}/api/{repo.kind}s/{repo.name}/tree/{quote(commit, safe='')}?recursive=true&expand=false"


def file_url(endpoint: str, repo: Repo, revision: str, path: str) -> str:
    """Give where one file of a revision is served."""
    return f"{endpoint}/{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"
