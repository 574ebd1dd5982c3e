"""What is meant by a repository, a revision and some names: asked of the hub once, and fixed from then on."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.model.errors import NotOnServer
from stoker.model.frozen import frozen
from stoker.store.hub.address import Repo
from stoker.store.hub.choosing import choose
from stoker.store.hub.hub import Hub, label_of
from stoker.store.hub.repo_file import RepoFile, Revision


@frozen
class Found:
    """The files of a repository that are meant, at the commit that was found."""

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
) -> Found:
    """Ask what a revision is now, and choose from what it holds, as `choose` does.

    A server that lists nothing is asked for files by their names; some tell the commit with each of them. Raises
    what `Hub` and `choose` raise, and `NotOnServer` where such a server was given no names.
    """
    found = hub.resolve(repo, revision)
    if found.commit:
        listed = hub.files(repo, found.commit)
    elif names:
        found, listed = hub.named_files(repo, found, names)
    else:
        raise NotOnServer(f"the server lists no files of {repo}", hint="name the files: this server does not list them")
    return Found(repo=repo, revision=found, files=choose(listed, names=names, include=include, exclude=exclude))
