"""`stoker store verify`: is what is kept still what its digests say?"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional, size
from stoker.cli.progress import under_way
from stoker.core.errors import CorruptBytes, Usage
from stoker.core.text import format_size
from stoker.jobs.leased_put import LeasedStoreWriter
from stoker.store.put import PutRequest, StoredTree, survey
from stoker.store.refs import check_ref_name, list_refs
from stoker.views.text_tables import table

if TYPE_CHECKING:
    from stoker.store.verify import StoreItemCheck


# `stoker store put`: take a file or a folder into the store, under a name.

PUT_GRAMMAR = Grammar(
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


def perform_put(call: CommandContext, given: dict[str, Any]) -> int:
    """Put a thing."""
    parts = call.parts
    path = os.path.join(parts.settings.folder, given["path"])
    own_name = _own_name(path, is_archive=given["unpack"])
    name = check_ref_name(own_name if given["as"] is None else given["as"])
    wish = PutRequest(name=name, kind=given["kind"] or "", replace=given["replace"], source=os.path.abspath(path))
    surveyed = survey(path)
    with under_way(call, f"putting {name}", surveyed.size_bytes) as amount:
        way_in = LeasedStoreWriter(parts.store, leases=parts.tools.engine.leases, clock=parts.clock, heed=amount.heed)
        done = way_in.put(surveyed, wish, unpacks=given["unpack"])
    _show(call, done)
    return 0


def _show(call: CommandContext, done: StoredTree) -> None:
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


VERIFY_GRAMMAR = Grammar(
    "store verify",
    about=(
        "Check every result and everything that was put: what changed since it was last checked, or was never checked "
        "here, is hashed again. --full hashes every byte, from the disk; --sample only a part of all bytes, and parts "
        "1/20 to 20/20 are everything. Damage is set aside in the store's quarantine, and the next run makes it again. "
        "Exit code 13 if any."
    ),
    options=(
        Option("--full", help="hash every byte again, whatever is known of it"),
        Option("--sample", value="N/M", help="hash the N-th of M parts again; 5% is a part by chance"),
        Option("--rate", value="SIZE", read=size, help="read at most so much a second: 50MB"),
    ),
    examples=("stoker store verify", "stoker store verify --full --rate 50MB", "stoker store verify --sample 1/20"),
)


def perform_verify(call: CommandContext, given: dict[str, Any]) -> int:
    """Check everything, or a part."""
    from stoker.store.verify import EVERYTHING, StoreItemType, Throttle, bytes_to_check, check_store

    out, store, clock = call.out, call.parts.store, call.parts.clock
    sample = _sample(call, given)
    part = EVERYTHING if given["full"] else sample
    counts: Counter[StoreItemType] = Counter()
    damaged = []
    total_bytes = bytes_to_check(store, part) if part else None
    with under_way(call, "checking", total_bytes) as amount:
        heed = Throttle(given["rate"], clock, amount.heed).heed if given["rate"] else amount.heed
        with closing(check_store(store, afresh=part, heed=heed, clock=clock)) as checks:
            for checked in checks:
                # Also where nothing has to be hashed, it can be stopped.
                amount.heed(0)
                counts[checked.what] += 1
                if checked.damage:
                    damaged.append(checked)
                    out.object(
                        {
                            "what": checked.what,
                            "key": checked.key or None,
                            "digest": checked.digest,
                            "stage": checked.stage or None,
                            "name": checked.names[0] if checked.names else None,
                            "names": list(checked.names),
                            "damage": checked.damage,
                        }
                    )
    results, puts = counts[StoreItemType.RESULT], counts[StoreItemType.PUT]
    for line in table(_rows(damaged), header=("", "what", "damage"), columns=out.columns) if damaged else ():
        out.line(line)
    out.object(
        {
            "results": results,
            "puts": puts,
            "damaged": len(damaged),
            "full": bool(given["full"]),
            "sample": given["sample"],
            "hashed_bytes": amount.done_bytes,
        }
    )
    if damaged:
        raise CorruptBytes(
            f"{_counted(damaged, results)}; what is wrong was set aside in {store.places.quarantine}",
            hint="run the jobs again, and put again what was put: only what is damaged is made anew",
        )
    share = f", {format_size(amount.done_bytes)} hashed again" if sample else ""
    things = f" and {puts} thing{'' if puts == 1 else 's'} that {'was' if puts == 1 else 'were'} put" if puts else ""
    out.line(f"{results} result{'' if results == 1 else 's'}{things}, all as they should be{share}")
    return 0


def _rows(damaged: list[StoreItemCheck]) -> list[list[str]]:
    """Return a row for each, by the digest and the names that `store refs` shows, where it has them."""
    rows = []
    for one in damaged:
        shown = (one.digest or one.key) if one.names else one.key
        rows.append([shown[:12], f"put as {', '.join(one.names)}" if one.names else one.stage or one.what, one.damage])
    return rows


def _counted(damaged: list[StoreItemCheck], results: int) -> str:
    count = len(damaged)
    if all(one.what == "result" for one in damaged):
        return f"{count} of {results} results {'is' if count == 1 else 'are'} damaged"
    return f"{count} damaged thing{'' if count == 1 else 's'}"


def _sample(call: CommandContext, given: dict[str, Any]) -> Any:
    from stoker.store.verify import read_sample

    if given["sample"] is None:
        return None
    if given["full"]:
        raise Usage("--full is everything: with --sample it can't be", hint="stoker help store verify")
    try:
        return read_sample(given["sample"], call.parts.entropy() << 32)
    except ValueError as error:
        raise Usage(f"--sample: {error}", hint="stoker help store verify") from None
