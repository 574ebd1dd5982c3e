"""A process that receives a tree and is killed at a step: `tree_child.py URL SOCKET TREE STORE STEP COUNT`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing

from stoker.host.http.client import Urllib3Transport
from stoker.host.http.settings import FleetIdentity, HttpSettings
from stoker.model.clock import SystemClock
from stoker.store.download.stop import Stop
from stoker.store.local import LocalStore
from stoker.wire.client import FleetClient
from stoker.worker.shipping.origins import FleetOrigins
from stoker.worker.shipping.tree_receiving import receive_tree


def main() -> None:
    url, path, tree, root, step, count = sys.argv[1:]
    left = int(count)

    def at(name: str) -> None:
        nonlocal left
        left -= name == step
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    clock = SystemClock()
    store = LocalStore(root, clock=clock)
    store.open()
    with closing(Urllib3Transport(HttpSettings(fleet=FleetIdentity(sockets=(path,))))) as transport:
        client = FleetClient(transport, url, clock=clock)
        origins = FleetOrigins(client, transport, worker="child", open_peer=lambda _: None)
        receive_tree(origins, tree, store, stop=Stop(), clock=clock, on_step=at)
    store.close()


main()
