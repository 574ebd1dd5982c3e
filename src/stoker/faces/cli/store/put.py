"""`stoker store put`: take a file or a folder into the store, under a name."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, Positional
from stoker.faces.cli.under_way import under_way
from stoker.model.units import format_size
from stoker.store.putting import PutThing, Wish, survey
from stoker.store.refs import check_ref_name, list_refs
from stoker.worker.leased_putting import LeasedPutting

GRAMMAR = Grammar(
    "store put",
    about=(
        "Copy a file or a folder into the store, checked and durable, under a name that keeps it from pruning. Yours "
        "stays where it is. What the store has already takes no space again. `stoker get NAME` gives it back."
    ),
    positionals=(Positional("PATH", help="a file or a folder"),),
    options=(
        Option("--as", value="NAME", help="what to call it; its own name unless told"),
        Option("--kind", value="KIND", help="what it is, for your own order: a word that is kept with the name"),
        Option("--replace", help="let a name that stands for something else stand for this from now on"),
        Option("--unpack", help="take in what an archive holds (.tar.zst, .tar), not the archive"),
    ),
    examples=(
        "stoker store put data",
        "stoker store put model.gguf --as base --kind gguf",
        "stoker store put bundle.tar.zst --unpack --as run-7",
    ),
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Put a thing."""
    parts = call.parts
    path = os.path.join(parts.settings.folder, given["path"])
    own_name = _own_name(path, is_archive=given["unpack"])
    name = check_ref_name(own_name if given["as"] is None else given["as"])
    wish = Wish(name=name, kind=given["kind"] or "", replace=given["replace"], source=os.path.abspath(path))
    surveyed = survey(path)
    with under_way(call, f"putting {name}", surveyed.size_bytes) as amount:
        way_in = LeasedPutting(parts.store, leases=parts.tools.engine.leases, clock=parts.clock, heed=amount.heed)
        done = way_in.put(surveyed, wish, unpacks=given["unpack"])
    _show(call, done)
    return 0


def _show(call: Call, done: PutThing) -> None:
    out, ref = call.out, done.ref
    out.object(
        {
            **ref.to_json(),
            "added_bytes": done.added_bytes,
            "is_known": done.is_known,
            "before": done.before.digest if done.before else None,
            "archive_sha256": done.archive_sha256 or None,
        }
    )
    files = f"{ref.files} file{'' if ref.files == 1 else 's'}, {format_size(ref.size_bytes)}"
    added = "already here, 0 B added" if done.is_known else f"{format_size(done.added_bytes)} added"
    out.line(f"{ref.name}  {ref.digest[:12]}  {files}; {added}")
    if done.before is not None and done.before.key not in {one.key for one in list_refs(call.parts.store.places)}:
        out.note(
            f"note: {ref.name} stood for {done.before.digest[:12]} until now; that goes with a later prune unless you "
            f"say stoker store pin {done.before.digest[:12]}"
        )


def _own_name(path: str, *, is_archive: bool) -> str:
    name = os.path.basename(os.path.abspath(path))
    for suffix in (".tar.zst", ".tar") if is_archive else ():
        name = name.removesuffix(suffix)
    return name
