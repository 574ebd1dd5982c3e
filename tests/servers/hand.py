"""A worker's hand for tests: takes jobs of a real coordinator and says what became of them; nothing runs."""

from __future__ import annotations

import hashlib
from typing import Any

from stoker.core.capability import Capability
from stoker.core.device import Device
from stoker.core.jsontext import dumps
from stoker.protocol.client import FleetClient
from stoker.protocol.lease_messages import Claim, Finish, Grant, Hello, Start

BLOB = b"a result's archive, as far as anybody here looks into it"


class Hand:
    """A worker's hand: takes jobs and says what became of them."""

    def __init__(self, client: FleetClient, name: str = "desk", devices: tuple[Device, ...] = ()) -> None:
        self.client = client
        self.name = name
        self._claims = 0
        found = Capability(
            hostname=name,
            os="linux",
            arch="x86_64",
            cpu_cores=8,
            ram_total_bytes=1 << 36,
            ram_available_bytes=1 << 36,
            devices=devices,
        )
        hello = Hello(
            worker=name,
            incarnation=f"incarnation-{name}",
            capability=found.to_dict(),
            capability_digest=found.digest,
            slots=4,
        )
        client.hello(hello)

    def take(self, count: int = 1) -> tuple[Grant, ...]:
        self._claims += 1
        claim = Claim(
            request_id=f"request-{self.name}-{self._claims}",
            worker=self.name,
            incarnation=f"incarnation-{self.name}",
            most=count,
            wait_s=10.0,
        )
        return self.client.claim(claim).grants

    def start(self) -> Grant:
        (grant,) = self.take()
        self.client.write(grant.job, Start(**said(grant)))
        return grant

    def put(self, grant: Grant, path: str, text: str, offset: int = 0) -> None:
        self.client.put_file(grant.token(), path, text.encode(), offset=offset)

    def put_story(self, grant: Grant, *lines: str) -> None:
        """Mirror a folder in which one stage ran and printed."""
        named = {"v": 1, "attempt": "20260101-000000-abcd", "job_id": grant.job, "name": grant.spec.name}
        about = {"args": {}, "folder": "/", "started_s": 1.0, "stoker": "0", "options": {}}
        spec = {**named, **about, "recipe": "command"}
        began = {"v": 1, "ts": 1.0, "seq": 1, "source": "run", "kind": "stage_started", "node": "run", "stage": "run"}
        self.put(grant, "job.json", dumps(spec))
        self.put(grant, "status.jsonl", f"{dumps(began)}\n")
        self.put(grant, "logs/run.log", "".join(f"{line}\n" for line in lines))

    def finish(self, grant: Grant, **metrics: float) -> None:
        sha256 = hashlib.sha256(BLOB).hexdigest()
        begun = self.client.begin_upload(sha256, len(BLOB))
        if not begun.is_known:
            self.client.append_upload(begun.id, BLOB, offset=0)
            self.client.finish_upload(begun.id)
        ended = Finish(**said(grant), tree=sha256, archive_sha256=sha256, size_bytes=len(BLOB), metrics=metrics)
        self.client.write(grant.job, ended)


def said(grant: Grant) -> dict[str, Any]:
    return {"attempt": grant.attempt, "epoch": grant.epoch, "generation": grant.generation}
