"""`stoker reference`: the C++ reference of comparisons: fetch it, and list what is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option
from stoker.cli.screens import busy
from stoker.core.errors import (
    LockHeld,
    NetworkFailed,
    NoSpace,
    NotOnServer,
    NotVerified,
    PluginCrashed,
    ReferenceNotBuilt,
    Usage,
)
from stoker.core.frozen import fields_of
from stoker.core.text import format_size
from stoker.views.text_tables import ago

if TYPE_CHECKING:
    from stoker.crossval.reference import InstalledReference

LIST_GRAMMAR = Grammar(
    "reference list",
    about=(
        "List the C++ references that are installed: llama.cpp, each in an environment of its own. `stoker crossval` "
        "uses the one that was fetched last."
    ),
    examples=("stoker reference", "stoker reference list --json"),
)


def perform_list(call: CommandContext, _given: dict[str, Any]) -> int:
    """List references."""
    from stoker.crossval.reference import list_references
    from stoker.store.environment_cache import EnvironmentCache

    parts, out = call.parts, call.out
    found = list_references(EnvironmentCache(parts.settings.envs, clock=parts.clock))
    now_s = parts.clock.wall_s()
    for one in found:
        out.object(_fields(one))
    if found:
        rows = [
            (one.tag, one.library_sha256[:12], format_size(one.size_bytes), ago(one.fetched_s, now_s)) for one in found
        ]
        out.table(rows, header=("REFERENCE", "LIBRARY", "SIZE", "FETCHED"))
    else:
        out.note("no reference; fetch one: stoker reference fetch")
    return 0


FETCH_GRAMMAR = Grammar(
    "reference fetch",
    about=(
        "Install llama.cpp from the package index into an environment of its own, and check it: it must compute a "
        "small model with known answers. Version, flags and the digest of its library are recorded. If it is there "
        "already, it is only checked. A fetched reference is deleted by `stoker store prune`, as any environment."
    ),
    options=(
        Option(
            "--tag",
            value="VERSION",
            help=(
                "version of xllamacpp (a wheel; default: the one that this Stoker was tested with), or "
                "llama-cpp-python==VERSION, which is built from source: minutes, and a C++ compiler"
            ),
        ),
        Option("--force", help="install it again, also if it is there"),
        Option("--clean", help="first delete all references that no job uses"),
    ),
    examples=(
        "stoker reference fetch",
        "stoker reference fetch --tag 2026.10.11549 --force",
        "stoker reference fetch --clean --json",
    ),
    errors=(Usage, NoSpace, NetworkFailed, NotOnServer, NotVerified, LockHeld, PluginCrashed, ReferenceNotBuilt),
)


def perform_fetch(call: CommandContext, given: dict[str, Any]) -> int:
    """Install the reference, and check it."""
    import sys

    from stoker.crossval.reference import ReferencePlaces, fetch_reference
    from stoker.store.environment_cache import EnvironmentCache

    parts, out = call.parts, call.out
    places = ReferencePlaces(
        shelf=EnvironmentCache(parts.settings.envs, clock=parts.clock),
        environment=parts.settings.environment,
        own_prefix=sys.prefix,
        base_python=getattr(sys, "_base_executable", "") or sys.executable,
        clock=parts.clock,
    )
    with busy(call, "fetching the reference"):
        fetched = fetch_reference(
            places, given["tag"] or "", forces=given["force"], cleans=given["clean"], say=out.note
        )
    one = fetched.reference
    out.object({**_fields(one), "is_new": fetched.is_new, "removed": list(fetched.removed)})
    for tag in fetched.removed:
        out.line(f"deleted {tag}")
    out.line(f"llama.cpp {one.tag}: {'installed' if fetched.is_new else 'was there'}, and computes correctly")
    out.line(f"library {one.library_sha256[:12]}, Python {one.python}, {format_size(one.size_bytes)}")
    return 0


def _fields(one: InstalledReference) -> dict[str, Any]:
    return {"tag": one.tag, **fields_of(one)}
