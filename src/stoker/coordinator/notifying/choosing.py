"""Which events a hook is told of, what it is sent, and how that is signed. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from stoker.model.fleet_events import FleetKinds
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps
from stoker.model.lifecycle import JobState
from stoker.wire.health import USUAL_WORDS

SIGNATURE_HEADER = "X-Stoker-Signature"
ID_HEADER = "X-Stoker-Event-Id"
TEST = "test"

_ENDS = {state.value: state.value for state in JobState if state.is_terminal}
_WORDS = {
    FleetKinds.JOB_SUBMITTED: "submitted",
    FleetKinds.JOB_REQUEUED: "submitted",
    FleetKinds.JOB_STARTED: "started",
    FleetKinds.JOB_RETRYING: "retrying",
    FleetKinds.JOB_EXPIRED: "retrying",
    FleetKinds.SYMPTOM: "symptom",
    FleetKinds.SYMPTOM_OVER: "symptom",
    FleetKinds.MACHINE_JOINED: "machine",
    FleetKinds.MACHINE_CHANGED: "machine",
    FleetKinds.MACHINE_LEFT: "machine",
    FleetKinds.MACHINE_LOST: "machine",
    FleetKinds.MACHINE_FORGOTTEN: "machine",
    FleetKinds.INVITED: "trust",
    FleetKinds.INVITE_WITHDRAWN: "trust",
    FleetKinds.JOIN_REFUSED: "trust",
    FleetKinds.CERTIFICATE_ISSUED: "trust",
    FleetKinds.CERTIFICATE_REVOKED: "trust",
    FleetKinds.TOKEN_MADE: "trust",
    FleetKinds.TOKEN_REVOKED: "trust",
}


@frozen
class Notice:
    """One message of a hook."""

    id: str
    """The same however often it is sent: whoever takes it tells a repeat by it."""
    body: bytes


def word_of(event: Mapping[str, Any]) -> str:
    """Give the word that hooks ask for an event by; empty: none is told of it."""
    kind = str(event.get("kind", ""))
    if kind.startswith("job_") and (ends := _ENDS.get(str(event.get("to", "")))):
        return ends
    return _WORDS.get(kind, "")


def is_wanted(event: Mapping[str, Any], words: tuple[str, ...]) -> bool:
    """Say whether a hook of these words is told of an event."""
    word = word_of(event)
    return bool(word) and word in (words or USUAL_WORDS)


def notice_of(event: Mapping[str, Any]) -> Notice:
    """Give the message that tells an event: the event as all streams have it, under its word."""
    id = f"{event.get('generation', 0)}-{event['seq']}"
    return Notice(id=id, body=dumps({"event": word_of(event), "id": id, **event}).encode())


def trial(hook: int, at_s: float) -> Notice:
    """Give a message that only tries a hook."""
    id = f"{TEST}-{hook}-{at_s:.3f}"
    body = {"event": TEST, "id": id, "v": 1, "ts": at_s, "kind": TEST, "message": f"this tries hook {hook}"}
    return Notice(id=id, body=dumps(body).encode())


def signed(notice: Notice, secret: str, at_s: float) -> dict[str, str]:
    """Give the headers that prove a message: HMAC-SHA256 over the time, a dot and the body."""
    at = str(int(at_s))
    proof = hmac.new(secret.encode(), at.encode() + b"." + notice.body, hashlib.sha256).hexdigest()
    return {SIGNATURE_HEADER: f"t={at},sha256={proof}", ID_HEADER: notice.id}
