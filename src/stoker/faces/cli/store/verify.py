"""`stoker store verify`: is what is kept still what its digests say?"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, size
from stoker.faces.cli.under_way import under_way
from stoker.faces.view.tables import table
from stoker.model.errors import CorruptBytes, Usage
from stoker.model.units import format_size

if TYPE_CHECKING:
    from stoker.store.verifying import ThingCheck

GRAMMAR = Grammar(
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


def perform(call: Call, given: dict[str, Any]) -> int:
    """Check everything, or a part."""
    from stoker.store.verifying import EVERYTHING, Throttle, What, bytes_to_check, check_store

    out, store, clock = call.out, call.parts.store, call.parts.clock
    sample = _sample(call, given)
    part = EVERYTHING if given["full"] else sample
    counts: Counter[What] = Counter()
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
    results, puts = counts[What.RESULT], counts[What.PUT]
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


def _rows(damaged: list[ThingCheck]) -> list[list[str]]:
    """Give a row for each, by the digest and the names that `store refs` shows, where it has them."""
    rows = []
    for one in damaged:
        shown = (one.digest or one.key) if one.names else one.key
        rows.append([shown[:12], f"put as {', '.join(one.names)}" if one.names else one.stage or one.what, one.damage])
    return rows


def _counted(damaged: list[ThingCheck], results: int) -> str:
    count = len(damaged)
    if all(one.what == "result" for one in damaged):
        return f"{count} of {results} results {'is' if count == 1 else 'are'} damaged"
    return f"{count} damaged thing{'' if count == 1 else 's'}"


def _sample(call: Call, given: dict[str, Any]) -> Any:
    from stoker.store.verifying import read_sample

    if given["sample"] is None:
        return None
    if given["full"]:
        raise Usage("--full is everything: with --sample it can't be", hint="stoker help store verify")
    try:
        return read_sample(given["sample"], call.parts.entropy() << 32)
    except ValueError as error:
        raise Usage(f"--sample: {error}", hint="stoker help store verify") from None
