"""What a repository holds at one commit, as nouns."""

from __future__ import annotations

from stoker.model.digests import Digest
from stoker.model.frozen import frozen


@frozen
class Revision:
    """A revision as it was asked for, and the commit that it was then. Only the commit counts from then on."""

    asked: str
    commit: str
    """Empty where the server is a plain mirror that knows no commits."""


@frozen
class RepoFile:
    """One file of a repository, with everything that the hub says of its bytes."""

    path: str
    """`/`-separated, as the server says it: judged by the rules of `host.names` before anything is written."""
    size_bytes: int | None = None
    sha256: Digest | None = None
    """Of large files."""
    git_sha1: str = ""
    """Of the git blob (header and content), of files that git itself keeps."""
    pointer_sha1: str = ""
    """The same of what git keeps in the place of a large file. Says nothing about its bytes."""
    xet_hash: str = ""
    """What the cache's shared store knows its bytes by."""

    @property
    def blob(self) -> str:
        """The name of its bytes in the cache: the digest that they have. Empty if the server told none."""
        return self.sha256 or self.git_sha1
