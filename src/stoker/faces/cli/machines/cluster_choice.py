"""Which cluster file is meant: the one that is named, the one that lies here, or the one that the environment names."""

from __future__ import annotations

import os

from stoker.config.config_file import SUFFIXES
from stoker.faces.cli.call import Call
from stoker.faces.cli.commands import verbs_of
from stoker.faces.cli.grammar import Positional
from stoker.faces.cli.near_words import instead
from stoker.model.errors import LocalFile, Usage
from stoker.model.suggest import nearest

NAMES = ("cluster.yaml", "cluster.yml", "cluster.toml")
VARIABLE = "STOKER_CLUSTER"

FILE = Positional(
    "FILE",
    help=f"a cluster file; unless told, {NAMES[0]} in this folder, else what {VARIABLE} names",
    is_required=False,
)


def choose_cluster(call: Call, typed: str) -> tuple[str, str]:
    """Give the cluster file that is meant: as it was called, and its whole path. `typed` may be empty."""
    settings = call.parts.settings
    here = next((name for name in NAMES if os.path.exists(os.path.join(settings.folder, name))), "")
    chosen = typed or here or settings.environment.get(VARIABLE, "")
    if typed and not typed.endswith(SUFFIXES) and not os.path.exists(call.path(typed)):
        meant = nearest(typed, [verb.path[1] for verb in verbs_of("cluster")])
        near = f"did you mean `stoker cluster {meant}`?" if meant else f"a cluster file is {' or '.join(SUFFIXES)}"
        hint = instead("cluster", [typed]) or near
        raise Usage(f"`stoker cluster` does not know {typed!r}", hint=hint)
    if not chosen:
        hint = f"name one, set {VARIABLE}, or write one: stoker machines export --out {NAMES[0]}"
        raise LocalFile(f"there is no {NAMES[0]} in this folder", hint=hint, path=NAMES[0])
    return chosen, call.path(chosen)
