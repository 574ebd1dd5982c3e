"""How quickly does 1 GiB of data get from a coordinator to another machine's store, verified and durable?

Beside it, in turns and over the same loopback interface: `stoker fetch`'s own engine, which takes as many bytes from
nginx and checks them. With TLS on both sides and without. Sending is from a folder to the coordinator's store. Of three
machines that want a tree at once, one takes it from the coordinator, the others from each other while it comes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import fleet
import harness
from fetching import Lab, lab
from fleet import Coordinator
from harness import Case, Row, Run, Side
from nginx import Served, Shelf

SIZE_BYTES, QUICK_BYTES = 2**30, 2**20
ROUNDS = 7
AT_MOST = 1 / 0.7
"""At least 70 % of the rate of a fetch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is sent and fetched, and where it lies."""

    file: Served
    path: Path


def main() -> int:
    bench = harness.start("contents", __doc__.splitlines()[0])
    kept: list[Kept] = []

    def fill(shelf: Shelf) -> None:
        file = shelf.add("bench/tree", "data.bin", QUICK_BYTES if bench.quick else SIZE_BYTES, is_large=True)
        kept.append(Kept(file=file, path=shelf.folder / "files" / file.repository / file.name))

    with lab(bench, fill) as at:
        if at is not None:
            for is_secure in (False,) if bench.quick else (False, True):
                listen = "0.0.0.0:0" if is_secure else "127.0.0.1:0"
                with fleet.serving(at.stoker, at.bench.home("home"), listen=listen) as coordinator:
                    measure(at, coordinator, kept[0], is_secure=is_secure)
    return bench.finish()


def measure(at: Lab, coordinator: Coordinator, kept: Kept, *, is_secure: bool) -> None:
    """One coordinator, with TLS or without."""
    name, origin = (" by TLS 1.3", at.server.tls) if is_secure else ("", "")
    sent = _side(at, coordinator, "send", kept).once()
    sides = [_side(at, coordinator, "receive", kept), at.engine("fetch", kept.file, way="durable", origin=origin)]
    runs = at.bench.in_turns(sides, rounds=ROUNDS)
    received, fetched = harness.seconds_of(runs["receive"]), harness.seconds_of(runs["fetch"])
    rows = at.bench.rows
    rows.append(
        Row(
            question=f"a coordinator's data into another machine's store{name}",
            against="stoker fetch from nginx",
            ours=received,
            theirs=fetched,
            at_most=AT_MOST,
        )
    )
    rows.append(
        Row(
            question=f"data into the coordinator's store{name}",
            against="stoker fetch from nginx",
            ours=harness.seconds_of([sent]),
            theirs=fetched,
        )
    )
    if not is_secure:
        # One of them takes it from the coordinator, or this raises.
        three = _side(at, coordinator, "three", kept).once()
        rows.append(
            Row(
                question="the same to three machines at once, all on this one, one of them from the coordinator",
                against="to one",
                ours=harness.seconds_of([three]),
                theirs=received,
            )
        )


def _side(at: Lab, coordinator: Coordinator, way: str, kept: Kept) -> Side:
    file = kept.file
    told = {
        "FLEET_URL": coordinator.url,
        "FLEET_TOKEN": coordinator.token.read_text().strip(),
        "FLEET_CA": str(coordinator.ca) if coordinator.url.startswith("https") else "",
        "TREE_SHA256": file.sha256,
        "TREE_BYTES": str(file.size_bytes),
        "TREE_FILE": str(kept.path),
    }

    def once() -> Run:
        arguments = Case(count=1, way=way).arguments(at.bench.home(way))
        executed = 1 if way == "three" else file.size_bytes
        return harness.run_side(at.stoker, "stoker_tree.py", arguments, executed=executed, environment=told)

    return Side(name=way, once=once)


if __name__ == "__main__":
    sys.exit(main())
