"""Who is at the other end of a TLS connection, as far as its certificate says. Only the standard library is needed.

A certificate that gets here has been verified by the connection's context: its CA signed it and it holds now. Whether
it was taken back meanwhile is for whoever keeps the list.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from stoker.model.frozen import frozen

MACHINE_URI = "stoker:machine/"


@frozen
class Certificate:
    """What a certificate says."""

    machine: str
    """The machine whose it is; empty: no machine's."""
    serial: str
    """40 letters of hexadecimal."""
    not_before_s: float
    not_after_s: float


def read_peer(told: Mapping[str, Any] | None) -> Certificate | None:
    """Read what `getpeercert()` gives; nothing where the other side has shown no certificate."""
    if not told:
        return None
    uris = [value for kind, value in told.get("subjectAltName", ()) if kind == "URI"]
    return Certificate(
        machine=machine_in(uris),
        serial=serial_text(int(told["serialNumber"], 16)),
        not_before_s=ssl.cert_time_to_seconds(told["notBefore"]),
        not_after_s=ssl.cert_time_to_seconds(told["notAfter"]),
    )


def machine_in(uris: list[str]) -> str:
    """Give the machine that a certificate's URIs name; one that names several names none."""
    machines = [uri.removeprefix(MACHINE_URI) for uri in uris if uri.startswith(MACHINE_URI)]
    return machines[0] if len(machines) == 1 else ""


def serial_text(serial: int) -> str:
    """Write a certificate's number as it is stored and shown."""
    return f"{serial:040x}"
