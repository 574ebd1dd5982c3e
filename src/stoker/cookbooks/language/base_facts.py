"""What people are told of a base before anything is trained over it: how large, from where, and whether it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable

from stoker.cookbooks.language.bases import TrainableBase, is_in_hub_cache
from stoker.cookbooks.language.bundled import BASES
from stoker.core.digests import is_digest
from stoker.core.text import format_size


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
