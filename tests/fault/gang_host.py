"""One host of a gang of two, as a program: it meets the other one four times, and says in JSON what came of it."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from stoker.core.errors import StokerError
from stoker.gang import Gang, RankConfig
from stoker.gang.rendezvous_client import RendezvousClient
from stoker.gang.rendezvous_host import RendezvousHost
from tests.unit.gang import gang_functions as functions

TOKEN = "a secret of these two hosts"
HOSTS = ["lab1", "lab2"]
GATE = "STOKER_TEST_GATE"
_UNHEARD_S = 1.5


def wait_at_the_gate(phase: str, _rank: int) -> None:
    """For `on_phase`: let nobody open the store before somebody has made a file."""
    if phase == "STORE":
        say(kind="seated")
    while phase == "STORE" and not os.path.exists(os.environ[GATE]):
        time.sleep(0.01)


def say(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def gang_of(name: str, at: tuple[str, int], epoch: int, **more: Any) -> Gang:
    if name == HOSTS[0]:
        rendezvous: Any = RendezvousHost(HOSTS, at=at, token=TOKEN, epoch=epoch, unheard_s=_UNHEARD_S)
    else:
        rendezvous = RendezvousClient(name, at=at, token=TOKEN, epoch=epoch, unheard_s=_UNHEARD_S)
    return Gang([RankConfig(0), RankConfig(1)], rendezvous=rendezvous, timeout_s=30, grace_s=2, **more)


def main(name: str, address: str, port: str) -> None:
    at = (address, int(port))
    with gang_of(name, at, 1) as gang:
        ranks = [context.rank for context in gang.contexts]
        say(kind="up", ranks=ranks, nranks=gang.contexts[0].nranks, sums=gang.run(functions.add, 1))
    os.environ[functions.VICTIM] = "3 DEVICE raise"
    hooks = {
        "early": "tests.unit.gang.gang_functions:fault_in_phase",
        "failed": "",
        "cut": "tests.fault.gang_host:wait_at_the_gate",
    }
    for epoch, (kind, hook) in enumerate(hooks.items(), start=2):
        gang = gang_of(name, at, epoch, on_phase=hook)
        try:
            with gang:
                say(kind="up again")
                gang.run(functions.fail_on, 3, "raise")
        except StokerError as error:
            told = {"error": error.code, "message": str(error)}
            say(kind=kind, data=json.loads(json.dumps(error.data, default=str)), **told)


if __name__ == "__main__":
    main(*sys.argv[1:])
