"""What `stoker fetch` is pointed at: a repository of a hub, a file of one, or any web address.

People copy addresses from their browser: a page of the hub itself means what the page shows, not its HTML.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from stoker.core.errors import BadInput, Usage
from stoker.core.frozen import frozen
from stoker.host.folders import name_fault
from stoker.host.http.addresses import origin, shown
from stoker.transfer.download.lock_list import leaf_of
from stoker.transfer.hub.listing import MAIN, Repo, check_revision, read_repo

_KINDS = ("models", "datasets", "spaces")
_FILE_PAGES = ("blob", "resolve", "raw")


@frozen
class Target:
    """Either a repository at a revision, and perhaps files of it, or an address."""

    repo: Repo | None = None
    revision: str = MAIN
    names: tuple[str, ...] = ()
    is_address: bool = False
    """Whether an address was given: what it names lands as a plain file."""
    url: str = ""
    """The address, where it is no page of the hub."""

    @property
    def leaf(self) -> str:
        """What a file from an address is called here."""
        return self.names[0].rpartition("/")[2] if self.repo else leaf_of(self.url)

    def __str__(self) -> str:
        return str(self.repo) if self.repo else shown(self.url)


def read_target(text: str, *, revision: str | None, names: tuple[str, ...], endpoint: str) -> Target:
    """Read a target and the files named with it. Raises `Usage` or `BadInput`."""
    if text.startswith(("http://", "https://")):
        target = _address(text, revision, names, endpoint)
    else:
        target = _repository(text, revision, names)
    for name in target.names:
        if fault := name_fault(name.removesuffix("/")):
            raise Usage(f"no file of a repository: {name!r}: {fault}", hint="give a file's path in the repository")
    return target


def _repository(text: str, revision: str | None, names: tuple[str, ...]) -> Target:
    name, at, given = text.partition("@")
    if at and revision is not None and given != revision:
        raise Usage(f"{text!r} and --rev {revision} name two revisions", hint="give one of them")
    repo = _read_repo(name)
    return Target(repo=repo, revision=check_revision(given or revision or MAIN), names=names)


def _read_repo(name: str) -> Repo:
    try:
        return read_repo(name)
    except BadInput as error:
        parts = name.removeprefix("hf://").split("/")
        count = 3 if parts[0] in _KINDS else 2
        if len(parts) > count and all(parts):
            error.hint = f"a file is a word of its own: {'/'.join(parts[:count])} {'/'.join(parts[count:])}"
        raise


def _address(url: str, revision: str | None, names: tuple[str, ...], endpoint: str) -> Target:
    page = _hub_page(url) if origin(url) == origin(endpoint) else None
    if page is not None and page.is_address and (names or revision is not None):
        raise Usage(
            f"{shown(url)} is one file already", hint="give the repository instead: stoker fetch org/repo FILE …"
        )
    if page is not None:
        chosen = page.revision if revision is None else check_revision(revision)
        return Target(repo=page.repo, revision=chosen, names=page.names + names, is_address=page.is_address)
    if names or revision is not None:
        raise Usage("an address is one file: it takes neither FILE nor --rev", hint="stoker fetch https://… --out DIR")
    fault = name_fault(leaf_of(url))
    if fault:
        raise Usage(f"the address names no file: {shown(url)}: {fault}", hint="give the address of a file")
    return Target(url=url, is_address=True)


def _hub_page(url: str) -> Target | None:
    """Read a hub's own page: `/org/repo`, `/org/repo/tree/main/folder`, `/org/repo/blob/main/file`."""
    parts = [unquote(part) for part in urlsplit(url).path.strip("/").split("/")]
    prefix = f"{parts.pop(0)}/" if parts[0] in _KINDS else ""
    if len(parts) < 2 or parts[0] == "api":
        return None
    verb, path = "".join(parts[2:3]), "/".join(parts[4:])
    try:
        repo = read_repo(prefix + "/".join(parts[:2]))
        revision = check_revision(parts[3]) if verb in ("tree", *_FILE_PAGES) and len(parts) > 3 else MAIN
    except BadInput:
        return None
    if verb in _FILE_PAGES and path:
        return Target(repo=repo, revision=revision, names=(path,), is_address=True)
    is_folder = not verb or (verb == "tree" and len(parts) > 3)
    return Target(repo=repo, revision=revision, names=(f"{path}/",) if path else ()) if is_folder else None
