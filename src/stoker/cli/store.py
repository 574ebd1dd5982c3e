"""`stoker store`: put, verify, du, pins, refs and adopt."""

from __future__ import annotations

import os
import pwd
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from stoker.api.cleanup import environments_of, home_places, model_cache, place_bytes, unfinished_bytes
from stoker.api.job import job_story
from stoker.api.job_lookup import StoredItem
from stoker.cli.context import CommandContext
from stoker.cli.grammar import AT, Grammar, Option, Positional, size
from stoker.cli.screens import busy, under_way
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import Ambiguous, CorruptBytes, NotFound, Usage
from stoker.core.text import counted, did_you_mean, format_size
from stoker.jobs.request import JobRequest
from stoker.jobs.rerun import AdoptionApproval, adopt_stage
from stoker.jobs.results import keys_of_job, keys_of_stage
from stoker.jobs.upkeep import LeasedStoreWriter
from stoker.store.environment_cache import label_of
from stoker.store.local_store import LocalStore
from stoker.store.places import QuarantinedItem, list_quarantine
from stoker.store.prune import all_records, resolve
from stoker.store.put import PutRequest, StoredTree, add_row, survey
from stoker.store.records import Record
from stoker.store.refs import PUT, check_ref_name, list_pins, list_refs, pin, remove_ref, unpin
from stoker.views.text_tables import ago, table

if TYPE_CHECKING:
    from stoker.api.fleet_job import FleetJob
    from stoker.store.verify import StoreItemCheck


# `stoker store put`: store a file or a folder under a name.

PUT_GRAMMAR = Grammar(
    "store put",
    about=(
        "Copy a file or a folder into the store, verified and durable, under a name that protects it from pruning. The "
        "original is not changed. Files that the store already has take no additional space. Copy it back with `stoker "
        "get NAME`."
    ),
    positionals=(Positional("PATH", help="a file or a folder"),),
    options=(
        Option("--as", value="NAME", help="name in the store (default: the file's name)"),
        Option("--kind", value="KIND", help="a label that is stored with the name"),
        Option("--replace", help="replace an existing name"),
        Option("--unpack", help="store the contents of an archive (.tar.zst, .tar)"),
    ),
    examples=(
        "stoker store put data",
        "stoker store put model.gguf --as base --kind gguf",
        "stoker store put bundle.tar.zst --unpack --as run-7",
    ),
)


def perform_put(call: CommandContext, given: dict[str, Any]) -> int:
    """Store a file or a folder."""
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
    files = f"{counted(ref.files, 'file')}, {format_size(ref.size_bytes)}"
    added = "already stored, 0 B added" if done.is_known else f"{format_size(done.added_bytes)} added"
    out.line(f"{ref.name}  {ref.digest[:12]}  {files}; {added}")
    if done.before is not None and done.before.key not in {one.key for one in list_refs(call.parts.store.places)}:
        out.note(
            f"note: {ref.name} was {done.before.digest[:12]} before, which a later prune deletes; keep it: "
            f"stoker store pin {done.before.digest[:12]}"
        )


def _own_name(path: str, *, is_archive: bool) -> str:
    name = os.path.basename(os.path.abspath(path))
    for suffix in (".tar.zst", ".tar") if is_archive else ():
        name = name.removesuffix(suffix)
    return name


VERIFY_GRAMMAR = Grammar(
    "store verify",
    about=(
        "Verify all results and stored trees: files that changed since the last check, or were never checked here, "
        "are hashed. --full hashes every byte from the disk; --sample hashes a part of all bytes (1/20 to 20/20 are "
        "everything). Damaged files are moved to the store's quarantine, and the next run makes them again. Exit code "
        "13 if there are any."
    ),
    options=(
        Option("--full", help="hash every byte again"),
        Option("--sample", value="N/M", help="hash the N-th of M parts; or a random part: 5%"),
        Option("--rate", value="SIZE", read=size, help="maximum read rate per second: 50MB (default: unlimited)"),
    ),
    examples=("stoker store verify", "stoker store verify --full --rate 50MB", "stoker store verify --sample 1/20"),
)


def perform_verify(call: CommandContext, given: dict[str, Any]) -> int:
    """Verify the store or a part of it."""
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
                # A stop is possible even if nothing is hashed.
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
    if damaged:
        out.table(_rows(damaged), header=("", "what", "damage"))
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
            f"{_counted(damaged, results)}; moved to {store.places.quarantine}",
            hint="run the jobs again, and put damaged trees again; only damaged files are made again",
        )
    share = f", {format_size(amount.done_bytes)} hashed again" if sample else ""
    trees = f" and {counted(puts, 'stored tree')}" if puts else ""
    out.line(f"{counted(results, 'result')}{trees} verified{share}")
    return 0


def _rows(damaged: list[StoreItemCheck]) -> list[list[str]]:
    """Return a row for each damaged item, by digest and names if it has names."""
    rows = []
    for one in damaged:
        shown = (one.digest or one.key) if one.names else one.key
        rows.append([shown[:12], f"put as {', '.join(one.names)}" if one.names else one.stage or one.what, one.damage])
    return rows


def _counted(damaged: list[StoreItemCheck], results: int) -> str:
    count = len(damaged)
    if all(one.what == "result" for one in damaged):
        return f"{count} of {results} results {'is' if count == 1 else 'are'} damaged"
    return counted(count, "damaged item")


def _sample(call: CommandContext, given: dict[str, Any]) -> Any:
    from stoker.store.verify import read_sample

    if given["sample"] is None:
        return None
    if given["full"]:
        raise Usage("--full and --sample exclude each other", hint="stoker help store verify")
    try:
        return read_sample(given["sample"], call.parts.entropy() << 32)
    except ValueError as error:
        raise Usage(f"--sample: {error}", hint="stoker help store verify") from None


# `stoker store du`: disk usage of results by stage, stored trees by name, and the rest of the store.

_LISTED = 5

DU_GRAMMAR = Grammar(
    "store",
    about=(
        "Show the disk usage of the store: results by stage and kind, stored trees by name, Python environments of "
        "jobs, and the rest. Shared files are counted once. `stoker clean-cache` also lists folders outside of the "
        "store."
    ),
    examples=("stoker store", "stoker store du --json", "stoker store prune --max-size 10G"),
)


def perform_du(call: CommandContext, _given: dict[str, Any]) -> int:
    """Show the disk usage."""
    out, store = call.out, call.parts.store
    seen: set[str] = set()
    results: dict[tuple[str, str], list[int]] = {}
    puts: dict[Digest, int] = {}
    total = 0
    with busy(call, "measuring results"):
        for record in _unwanted_last(store):
            size_bytes = _own_bytes(record, seen)
            total += size_bytes
            if record.body.get("stage") == PUT:
                if not record.is_tombstone:
                    puts[record.key] = size_bytes
                continue
            group = results.setdefault(
                (str(record.body.get("stage", "?")), str(record.body.get("kind", "?"))), [0, 0, 0]
            )
            group[0] += 1
            group[1] += int(record.is_tombstone)
            group[2] += size_bytes
    has_results = _show_results(call, results)
    has_puts = _show_puts(call, puts, is_first=not has_results)
    paths = home_places(store.places, call.parts.settings)
    # Their bytes are in the total.
    del paths["results"]
    has_environments = _show_environments(call, is_first=not (has_results or has_puts))
    with busy(call, "measuring folders"):
        places = {name: place_bytes(of) for name, of in paths.items()}
    places["unfinished downloads"] = unfinished_bytes(model_cache(call.parts, out.note))
    out.object(
        {
            "total_bytes": total,
            **{f"{name.replace(' ', '_')}_bytes": size for name, size in places.items()},
            "root": store.places.root,
        }
    )
    beside = "".join(f", {format_size(size)} in {name}" for name, size in places.items() if size)
    gap = "\n" if has_results or has_puts or has_environments else ""
    out.line(f"{gap}{format_size(total)} in {store.places.root}{beside}")
    _show_quarantine(call, list_quarantine(store.places.quarantine))
    return 0


def _show_environments(call: CommandContext, *, is_first: bool) -> bool:
    """Print the environments, last used first; return True if there are any."""
    shelf, out = environments_of(call.parts), call.out
    now_s = call.parts.clock.wall_s()
    rows = []
    for one in reversed(shelf.all_kept()):
        is_used = shelf.is_used(one.key)
        out.object(
            {
                "environment": one.key,
                "digest": one.digest,
                "python": one.version,
                "packages": one.packages,
                "bytes": one.size_bytes,
                "used_s": one.used_s,
                "is_in_use": is_used,
            }
        )
        used = "in use" if is_used else ago(one.used_s, now_s)
        rows.append([format_size(one.size_bytes), one.key[:12], label_of(one), used])
    if rows and not is_first:
        out.line()
    if rows:
        out.table(rows, header=("size", "environment", "", "used"))
    return bool(rows)


def _unwanted_last(store: LocalStore) -> Iterator[Record]:
    """Yield all records, unreferenced ones last, so that shared bytes are counted for referenced ones."""
    named = {ref.key for ref in list_refs(store.places)}
    unwanted = []
    for record, _ in all_records(store):
        if record.body.get("stage") == PUT and record.key not in named:
            unwanted.append(record)
        else:
            yield record
    yield from unwanted


def _own_bytes(record: Record, seen: set[str]) -> int:
    size_bytes = sum(map(len, record.inline.values()))
    for entry in record.blobs():
        if entry.sha256 not in seen:
            seen.add(entry.sha256)
            size_bytes += entry.size_bytes
    return size_bytes


def _show_results(call: CommandContext, results: dict[tuple[str, str], list[int]]) -> bool:
    rows = []
    for (stage, kind), (count, pruned, size_bytes) in sorted(results.items(), key=lambda item: -item[1][2]):
        call.out.object({"stage": stage, "kind": kind, "results": count, "pruned": pruned, "bytes": size_bytes})
        rows.append([format_size(size_bytes), str(count), str(pruned) if pruned else "", stage, kind])
    header = ("size", "results", "pruned", "stage", "kind") if rows else ()
    call.out.table(rows, header=header)
    return bool(rows)


def _show_puts(call: CommandContext, puts: dict[Digest, int], *, is_first: bool) -> bool:
    """Print stored trees by name, and those without a name."""
    refs = list_refs(call.parts.store.places)
    named = {ref.key for ref in refs}
    let_go = [size_bytes for key, size_bytes in puts.items() if key not in named]
    rows = []
    for ref in refs:
        size_bytes = puts.pop(ref.key, 0)
        call.out.object({"name": ref.name, "digest": ref.digest, "kind": ref.kind, "bytes": size_bytes})
        rows.append([format_size(size_bytes), ref.name, ref.digest[:12], ref.damage or ref.kind])
    if let_go:
        call.out.object({"name": None, "things": len(let_go), "bytes": sum(let_go)})
        rows.append([format_size(sum(let_go)), "(no name)", "", f"{len(let_go)} to be pruned, 1 h after the last use"])
    if rows and not is_first:
        call.out.line()
    if rows:
        call.out.table(rows, header=("size", "name", "digest", "kind"))
    return bool(rows)


def _show_quarantine(call: CommandContext, aside: list[QuarantinedItem]) -> None:
    if not aside:
        return
    now_s = call.parts.clock.wall_s()
    call.out.line("\nin quarantine")
    for one in aside[-_LISTED:]:
        call.out.line(f"  {ago(one.at_s, now_s)}: {one.reason}")
    if len(aside) > _LISTED:
        call.out.line(f"  … and {len(aside) - _LISTED} before these")


# `stoker store pins`: list the pins.

PINS_GRAMMAR = Grammar(
    "store pins",
    about="List the pins: results protected from pruning.",
    examples=("stoker store pins", "stoker store pin gbt --remove"),
)


def perform_pins(call: CommandContext, _given: dict[str, Any]) -> int:
    """List the pins."""
    out = call.out
    pins = list_pins(call.parts.store.places)
    for one in pins:
        out.object({"pin": one.name, "keys": list(one.keys)})
    rows = [[one.name, str(len(one.keys))] for one in pins]
    out.lines(table(rows, header=("pin", "results")) if rows else ["no pins"])
    return 0


# `stoker store pin`: protect results or stored trees from pruning.

PIN_GRAMMAR = Grammar(
    "store pin",
    about=(
        "Protect the results of a job or of one of its stages, or a stored tree, from pruning until the pin is removed."
    ),
    positionals=(
        Positional(
            "NAME[/STAGE]",
            key="target",
            help="a local or fleet job (a name, `last`, an id), or one stage of it; or the name or digest of a stored "
            "tree",
            completes="job ref",
        ),
    ),
    options=(Option("--remove", help="remove the pin"), AT),
    examples=(
        "stoker store pin gbt",
        "stoker store pin 3fa9c1d2",
        "stoker store pin gbt --remove",
        "stoker store pins",
    ),
)


def perform_pin(call: CommandContext, given: dict[str, Any]) -> int:
    """Pin or unpin."""
    fleet = call.lookup.fleet_job_if_meant(given["target"], given["at"])
    if fleet is not None:
        return _pin_on_fleet(call, fleet, is_pinned=not given["remove"])
    places, out = call.parts.store.places, call.out
    if given["remove"]:
        if not unpin(places, given["target"]):
            known = [one.name for one in list_pins(places)]
            hint = did_you_mean(given["target"], known) or "list pins: stoker store pins"
            raise NotFound(f"no pin {given['target']!r}", hint=hint)
        out.object({"pin": given["target"], "removed": True})
        out.line(f"removed the pin {given['target']}")
        return 0
    name, keys = _chosen(call, given["target"])
    kept = pin(places, name, tuple(dict.fromkeys(keys)))
    out.object({"pin": kept.name, "keys": list(kept.keys)})
    count = counted(len(kept.keys), "result")
    out.line(f"pinned {kept.name}: {count} protected from pruning")
    return 0


def _pin_on_fleet(call: CommandContext, job: FleetJob, *, is_pinned: bool) -> int:
    """Pin the coordinator's results of a job, or of every point of a sweep."""
    out = call.out
    for point, done in job.pin(is_pinned=is_pinned):
        for note in done.notes:
            out.note(f"note: {note}")
        if done.changed:
            out.object({"name": point.name, "job": point.id, "pinned": is_pinned})
            out.line(f"{point.name}: result protected from pruning" if is_pinned else f"{point.name}: unpinned")
    return 0


def _chosen(call: CommandContext, target: str) -> tuple[str, list[Digest]]:
    """Return the name of a pin and the keys that it protects."""
    name, _, stage = target.partition("/")
    found = call.lookup.job_or_stored(target)
    if isinstance(found, StoredItem):
        if stage:
            raise NotFound(f"{name} is not a job, so it has no stage {stage!r}", hint="list jobs: stoker jobs")
        return found.name, [record.key for record in found.records]
    story = job_story(found.folder)
    keys = keys_of_stage(found.folder, story, stage) if stage else keys_of_job(found.folder, story)
    job = found.spec.name
    if not keys:
        raise NotFound(f"job {job} has no results", hint=f"stoker jobs show {job}")
    return f"{job}/{stage}" if stage else job, list(keys.values())


# `stoker store refs`: list stored trees, show one, remove a name.

_MOST_PINS_LISTED = 50

REFS_GRAMMAR = Grammar(
    "store refs",
    about=(
        "List stored trees by name, or the files of one. A name protects its tree from pruning; without it, the next "
        "prune deletes the files that nothing else uses."
    ),
    positionals=(Positional("NAME", help="a name, or a digest prefix", is_required=False, completes="ref"),),
    options=(Option("--remove", help="remove the name"),),
    examples=("stoker store refs", "stoker store refs base", "stoker store refs base --remove"),
)


def perform_refs(call: CommandContext, given: dict[str, Any]) -> int:
    """List, show or remove names."""
    if given["remove"]:
        return _remove(call, given["name"])
    return _show_store_pins(call, given["name"]) if given["name"] else _list(call)


def _list(call: CommandContext) -> int:
    out, now_s = call.out, call.parts.clock.wall_s()
    refs = list_refs(call.parts.store.places)
    rows = []
    for ref in refs:
        out.object({**ref.to_json(), "damage": ref.damage or None})
        texts = [ref.digest[:12], format_size(ref.size_bytes), str(ref.files), ago(ref.at_s, now_s), ref.kind]
        rows.append([ref.name, *(texts if not ref.damage else ["damaged", "", "", "", ref.damage])])
    header = ("name", "digest", "size", "files", "put", "kind")
    lines = (
        table(rows, header=header, columns=out.columns) if rows else ["no stored trees; add one: stoker store put PATH"]
    )
    out.lines(lines)
    return 0


def _show_store_pins(call: CommandContext, name: str) -> int:
    out = call.out
    record = resolve(call.parts.store, name)[0]
    entries = record.tree.entries
    for entry in entries:
        out.object(
            {
                "path": entry.path,
                "bytes": entry.size_bytes,
                "sha256": entry.sha256,
                "executable": entry.executable,
                "link_to": entry.link_to,
            }
        )
    rows = [
        [
            format_size(entry.size_bytes),
            entry.sha256[:12],
            f"{entry.path} -> {entry.link_to}" if entry.link_to else entry.path,
        ]
        for entry in entries[:_MOST_PINS_LISTED]
    ]
    out.lines(table(rows, header=("size", "sha256", "file")) if rows else ["empty"])
    if len(entries) > _MOST_PINS_LISTED:
        out.line(f"… and {len(entries) - _MOST_PINS_LISTED:,} more")
    return 0


def _remove(call: CommandContext, name: str) -> int:
    places, out = call.parts.store.places, call.out
    if not name:
        raise Usage("--remove needs a name", hint="list names: stoker store refs")
    if not remove_ref(places, name):
        known = [ref.name for ref in list_refs(places)]
        raise NotFound(f"no stored tree {name!r}", hint=did_you_mean(name, known) or "list names: stoker store refs")
    add_row(places, {"did": "remove", "name": name, "at_s": call.parts.clock.wall_s()})
    out.object({"name": name, "removed": True})
    out.line(f"removed the name {name}; free its space: stoker store prune")
    return 0


# `stoker store adopt`: reuse an old result for changed code.

ADOPT_GRAMMAR = Grammar(
    "store adopt",
    about=(
        "Reuse the result of a job's stage for the current code and files, after a change that you know to have no "
        "effect. User, time and reason are recorded with the result."
    ),
    positionals=(Positional("NAME/STAGE", key="target", help="a stage of a job", completes="job"),),
    options=(
        Option("--reason", value="TEXT", help="why the change has no effect (required)"),
        Option("--from", value="KEY", help="use the result under this key or key prefix"),
    ),
    examples=("stoker store adopt last/train_gbt --reason 'only renamed a variable'",),
)


def perform_adopt(call: CommandContext, given: dict[str, Any]) -> int:
    """Adopt one stage's result."""
    out, parts = call.out, call.parts
    name, _, stage = given["target"].partition("/")
    if not stage or not (given["reason"] or "").strip():
        missing = "NAME/STAGE needs a stage" if not stage else "--reason is missing: why the change has no effect"
        raise Usage(missing, hint="stoker help store adopt")
    folder = call.find_job(name)
    plan = call.builder().build(JobRequest(earlier=folder)).plan
    old = keys_of_job(folder, job_story(folder))
    if given["from"]:
        old = {stage: _full_key(call, given["from"])}
    author = _author()
    blessing = AdoptionApproval(author=author, reason=given["reason"].strip(), at_s=parts.clock.wall_s())
    for adopted in adopt_stage(parts.cache, plan, stage, old=old, blessing=blessing):
        out.object(
            {"node": adopted.node, "from": adopted.old, "key": adopted.new, "reason": blessing.reason, "by": author}
        )
        out.line(f"{adopted.node}: result {adopted.old[:12]} is now also the result of key {adopted.new[:12]}")
    return 0


def _full_key(call: CommandContext, text: str) -> Digest:
    if is_digest(text):
        return Digest(text)
    found = [record.key for record, _ in all_records(call.parts.store) if record.key.startswith(text)]
    if not found:
        raise NotFound(f"no result with key prefix {text!r}", hint="show keys: stoker explain NAME/STAGE")
    if len(found) > 1:
        raise Ambiguous(f"{text!r} matches {len(found)} keys", hint="type more of the key")
    return found[0]


def _author() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # In many containers a user is only a number.
        return f"uid {os.getuid()}"
