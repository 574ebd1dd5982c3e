"""Lookup of a base by the argument `base`.

`tiny` is bundled; a folder is a folder; `org/name` (or `org/name@revision`) is looked up in the hub's cache; `lacking`
returns what is missing there.
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
    """Find a base and check it. Raises `BadInput` with all faults, in one line."""
    name, folder = _folder_of(text.strip())
    stamps = _stamps(folder)
    looked = _LOOKED.get((name, folder))
    # The trials of a sweep look up the same base again and again.
    if looked is None or looked[0] != stamps:
        looked = _LOOKED[name, folder] = stamps, read_base(folder, name=name, use=use)
    return looked[1]


def bases_here() -> dict[str, TrainableBase]:
    """Return every base that can be used by name: the bundled ones, and those in the hub's cache."""
    found: dict[str, TrainableBase] = {}
    for name in (*BASES, *(repo.name for repo in _hub_cache().models())):
        with suppress(StokerError):
            found[name] = find_base(name)
    return found


def outline_of(text: str) -> Outline | None:
    """Return the facts of a base whose weights may be missing; None if nothing is known, or it is invalid."""
    try:
        name, folder = _folder_of(text.strip())
    except BadInput:
        return None
    return read_outline(folder, name)


def lacking(text: str, argument: str) -> MissingRepoFiles | None:
    """Return the files of the hub that the named base lacks; None if a download would not help."""
    repo = _repository(text.strip())
    # Below an existing folder, a missing name is a typo.
    if repo is None or os.path.isdir(text.strip().partition("/")[0]):
        return None
    folder = _snapshot(*repo)
    names = SMALL_FILES if folder is None else still_to_come(folder)
    return MissingRepoFiles(argument=argument, repo=text.strip(), names=names, whole=_WHOLE) if names else None


def is_another_base(named: object, base: TrainableBase) -> bool:
    """Return True if the base name in an adapter means another base than this one.

    The same bytes are the same base wherever they are. Of a folder only its last name is known; a digest or a commit as
    a name means nothing.
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
"""The result of a check by folder, and the folder's stamp then."""


def _stamps(folder: Path) -> _Stamps:
    stamps = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                info = entry.stat()
                stamps.append((entry.name, info.st_ino, info.st_mtime_ns, info.st_size))
    return tuple(sorted(stamps))


def _folder_of(text: str) -> tuple[str, Path]:
    """Return the folder that a user means: a bundled base, a folder, or a model in the hub's cache."""
    if text in BASES:
        return text, bundled_base(text)
    if not text or "\0" in text:
        raise BadInput("base is missing", hint=f"a folder, org/name of the hub, or {', '.join(BASES)}")
    path = Path(os.path.expanduser(text))
    with suppress(OSError):
        if path.is_dir():
            return path.resolve().name, path
        if path.exists():
            hint = "use the folder with config.json, the tokenizer and the weights as safetensors"
            raise BadInput(f"{text} is a file; a base is a folder", hint=hint)
    repo = _repository(text)
    if repo is None:
        raise BadInput(
            f"folder not found: {text}",
            hint=did_you_mean(text, BASES) or f"a folder, org/name of the hub, or {', '.join(BASES)}",
        )
    found = _snapshot(*repo)
    if found is None:
        raise BadInput(f"{text} is neither a folder nor in the hub's cache", hint=f"stoker fetch {text}")
    return text, found


def _repository(text: str) -> tuple[Repo, str] | None:
    """Return the repository and the revision in a text; None if it is something else."""
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


# Facts of a base that are shown before training: size, source, completeness.


def base_facts(base: TrainableBase, digest_of: Callable[[str], str]) -> str:
    """Return the facts of a base in one line; files in the hub's cache are named by their SHA-256."""
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
