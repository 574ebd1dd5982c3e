"""Finding a base by what a user types.

`tiny` is bundled; a folder is a folder; `org/name` (or `org/name@revision`) is looked for in the hub's cache; what is
not there yet is returned by `lacking`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cookbooks.language.bases import (
    SMALL_FILES,
    Outline,
    TrainableBase,
    base_word,
    is_in_hub_cache,
    read_base,
    read_outline,
    still_to_come,
)
from stoker.cookbooks.language.bundled import BASES, bundled_base
from stoker.core.digests import is_digest
from stoker.core.errors import BadInput, MissingRepoFiles, StokerError
from stoker.core.text import did_you_mean, format_size
from stoker.engine.recipe import surroundings

if TYPE_CHECKING:
    from stoker.transfer.hub.hub_cache import HubCache
    from stoker.transfer.hub.listing import Repo

_OF_NO_MEANING = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_WHOLE = (*SMALL_FILES, "model*.safetensors")


def find_base(text: str, *, use: str = "trained") -> TrainableBase:
    """Find a base and look it through. Raises `BadInput` with everything that is wrong, in one line."""
    name, folder = _folder_of(text.strip())
    stamps = _stamps(folder)
    looked = _LOOKED.get((name, folder))
    # The trials of a sweep ask for the same one again and again.
    if looked is None or looked[0] != stamps:
        looked = _LOOKED[name, folder] = stamps, read_base(folder, name=name, use=use)
    return looked[1]


def bases_here() -> dict[str, TrainableBase]:
    """Find every base that is at hand by name: those that are bundled, and those in the hub's cache."""
    found: dict[str, TrainableBase] = {}
    for name in (*BASES, *(repo.name for repo in _hub_cache().models())):
        with suppress(StokerError):
            found[name] = find_base(name)
    return found


def outline_of(text: str) -> Outline | None:
    """Return what is known of a base whose weights may still have to come; nothing if that is nothing, or wrong."""
    try:
        name, folder = _folder_of(text.strip())
    except BadInput:
        return None
    return read_outline(folder, name)


def lacking(text: str, argument: str) -> MissingRepoFiles | None:
    """Return what the hub may have of the base that an argument names; nothing if fetching would change nothing."""
    repo = _repository(text.strip())
    # Below a folder that is here, a name that isn't is a slip.
    if repo is None or os.path.isdir(text.strip().partition("/")[0]):
        return None
    folder = _snapshot(*repo)
    names = SMALL_FILES if folder is None else still_to_come(folder)
    return MissingRepoFiles(argument=argument, repo=text.strip(), names=names, whole=_WHOLE) if names else None


def is_another_base(named: object, base: TrainableBase) -> bool:
    """Return whether what an adapter tells of its base, a name or a path, means another one than this.

    The same bytes are the same base wherever they lie. Of a folder only its own name is known, and one that a
    digest or a commit names says nothing.
    """
    if not isinstance(named, str) or not named.strip() or _OF_NO_MEANING.fullmatch(base.name):
        return False
    theirs, ours = (text.partition("@")[0].strip().rstrip("/") for text in (named, base.name))
    if not (_is_of_hub(theirs) and _is_of_hub(ours)):
        theirs, ours = theirs.rpartition("/")[2], ours.rpartition("/")[2]
    if theirs.lower() == ours.lower() or _OF_NO_MEANING.fullmatch(theirs):
        return False
    with suppress(StokerError, OSError, ValueError):
        return base_word(_folder_of(named.strip())[1]) != base.word
    return True


def _is_of_hub(text: str) -> bool:
    return text.count("/") == 1 and not text.startswith(("/", ".", "~"))


_Stamps = tuple[tuple[str, int, int, int], ...]
_LOOKED: dict[tuple[str, Path], tuple[_Stamps, TrainableBase]] = {}
"""What was seen in a folder, and how it looked then."""


def _stamps(folder: Path) -> _Stamps:
    stamps = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                info = entry.stat()
                stamps.append((entry.name, info.st_ino, info.st_mtime_ns, info.st_size))
    return tuple(sorted(stamps))


def _folder_of(text: str) -> tuple[str, Path]:
    """Tell what a user means: a bundled base, a folder, or a model of the hub that is in its cache."""
    if text in BASES:
        return text, bundled_base(text)
    if not text or "\0" in text:
        raise BadInput("no base is given", hint=f"a folder, org/name of the hub, or {', '.join(BASES)}")
    path = Path(os.path.expanduser(text))
    with suppress(OSError):
        if path.is_dir():
            return path.resolve().name, path
        if path.exists():
            hint = "give the folder that holds config.json, the tokenizer and the weights as safetensors"
            raise BadInput(f"{text} is a file, and a base is a folder", hint=hint)
    repo = _repository(text)
    if repo is None:
        raise BadInput(
            f"there is no folder {text}",
            hint=did_you_mean(text, BASES) or f"a folder, org/name of the hub, or {', '.join(BASES)}",
        )
    found = _snapshot(*repo)
    if found is None:
        raise BadInput(f"{text} is no folder here and is not in the hub's cache", hint=f"stoker fetch {text}")
    return text, found


def _repository(text: str) -> tuple[Repo, str] | None:
    """Return the repository and the revision that a text names; nothing if it means something else."""
    from stoker.transfer.hub.listing import read_repo_at

    name = text.partition("@")[0]
    if "/" not in name.rstrip("/") or name.startswith(("/", ".", "~")) or os.path.exists(text):
        return None
    with suppress(BadInput):
        repo, revision = read_repo_at(text)
        if repo.kind == "model":
            return repo, revision
    return None


def _snapshot(repo: Repo, revision: str) -> Path | None:
    cache = _hub_cache()
    commit = cache.commit_at(repo, revision)
    return Path(cache.snapshot(repo, commit)) if commit else None


def _hub_cache() -> HubCache:
    from stoker.transfer.hub.hub_cache import HubCache

    return HubCache(surroundings().hub_cache() or os.path.expanduser("~/.cache/huggingface/hub"))


# What is shown of a base before anything is trained over it: how large, from where, and whether it is whole.


def base_facts(base: TrainableBase, digest_of: Callable[[str], str]) -> str:
    """Return what is known of a base, in one line; what the hub has lies in its cache under its SHA-256."""
    said = [f"base {base.name}", format_size(base.size_bytes)]
    if base.name in BASES:
        said.append("bundled")
        return ", ".join(said)
    names = {one: os.path.basename(os.path.realpath(base.folder / one)) for one in base.weight_files}
    if all(map(is_digest, names.values())):
        found = {one: digest_of(str(base.folder / one)).removeprefix("sha256:") for one in names}
        others = [one for one, sha256 in names.items() if found[one] != sha256]
        said.append(f"sha256 ✗ ({', '.join(others)})" if others else "sha256 ✓")
    if is_in_hub_cache(base.folder):
        said.append("from the hub's cache")
    return ", ".join(said)
