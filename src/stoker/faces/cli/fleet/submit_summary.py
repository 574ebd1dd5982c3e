"""What goes along with a submission, in one line: `code 41 files (2 uncommitted, included) · env … · data …`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.faces.cli.call import Call
from stoker.faces.cli.fleet.environments import machines_there
from stoker.model.printable import outside
from stoker.model.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.wire.client import FleetClient
    from stoker.wire.contents import TreeView
    from stoker.worker.submitting.orders import Orders
    from stoker.worker.submitting.packing import Packed

_BETWEEN = " · "
_MOST_NAMED = 8


class Summary:
    """The line as it comes together: whoever knows a part of it adds that."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._parts: list[str] = []

    def add(self, part: str) -> None:
        """Add a part."""
        self._parts.append(part)

    def show(self) -> None:
        """Show what has come together."""
        if self._parts and not self._call.out.is_quiet:
            separator = _BETWEEN if self._call.out.is_unicode else "; "
            self._call.out.line(separator.join(self._parts))
        self._parts.clear()


def add_code(call: Call, summary: Summary, orders: Orders, client: FleetClient | None) -> None:
    """Add which code goes along. With a coordinator, of which nothing is wanted but an answer, what would be sent."""
    for packed in orders.packed:
        to_send = _to_send(packed, client) if client is not None else ""
        summary.add(code_text(packed) + to_send)
        call.out.object(
            {
                "code": packed.digest,
                "files": packed.files,
                "size_bytes": packed.size_bytes,
                "uncommitted": packed.uncommitted,
                "commit": packed.commit,
                "project": packed.project.identity,
            }
        )


def add_data(call: Call, summary: Summary, orders: Orders, client: FleetClient) -> None:
    """Add how much data goes along, who has it, and who copies it."""
    shipments = {one.digest: one for one in orders.shipments if one.is_data}
    if not shipments:
        return
    sent = {one.digest for one in orders.to_send(client.url)}
    machines = sorted(machines_there(client)) if sent else []
    for digest, one in shipments.items():
        tree = one.tree
        # Of several, each by what it is for.
        size = f"{outside(one.what) if len(shipments) > 1 else 'data'} {format_size(tree.size_bytes)}"
        if digest not in sent:
            summary.add(f"{size}: read where it lies")
            continue
        view = client.want_tree(digest, files=len(tree.entries), size_bytes=tree.size_bytes)
        summary.add(f"{size}: {data_text(view, machines)}")
        call.out.object(
            {"data": digest, "size_bytes": tree.size_bytes, **view.model_dump(include={"is_here", "held_by"})}
        )


def data_text(view: TreeView, machines: Sequence[str]) -> str:
    """Say where data is, and which machines take it from there, each once."""
    having = [name for name in machines if name in view.held_by]
    lacking = [name for name in machines if name not in view.held_by]
    parts = [] if view.is_here else ["to send"]
    parts += [f"on {_some(having)}"] if having else []
    parts += [f"{_some(lacking)} {'copies' if len(lacking) == 1 else 'copy'} it once"] if lacking else []
    return ", ".join(parts) or "with the coordinator"


def _some(names: Sequence[str]) -> str:
    shown = [*names[:_MOST_NAMED], f"{len(names) - _MOST_NAMED} more"] if names[_MOST_NAMED:] else list(names)
    return outside(" and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))))


def code_text(packed: Packed) -> str:
    """Say what a project's code is."""
    count = "1 file" if packed.files == 1 else f"{packed.files:,} files"
    return f"code {count}" + (f" ({packed.uncommitted:,} uncommitted, included)" if packed.uncommitted else "")


def _to_send(packed: Packed, client: FleetClient) -> str:
    """Say how much of it the coordinator does not have."""
    from stoker.store.listing import files_of
    from stoker.wire.contents import MOST_DIGESTS

    if client.want_tree(packed.digest, files=packed.files, size_bytes=packed.size_bytes).is_here:
        return ", all there"
    sizes = files_of(packed.tree)
    digests = list(sizes)
    missing = [
        digest
        for start in range(0, len(digests), MOST_DIGESTS)
        for digest in client.missing(digests[start : start + MOST_DIGESTS])
    ]
    size = format_size(sum(size for digest, size in sizes.items() if digest in set(missing)))
    return f", {len(missing):,} to send ({size})"
