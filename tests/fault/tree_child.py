"""A process that receives a tree and is killed at a step: `tree_child.py URL SOCKET TREE STORE STEP COUNT`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing

from stoker.core.clock import SystemClock
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import FleetIdentity, HttpSettings
from stoker.protocol.client import FleetClient
from stoker.store.local_store import LocalStore
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.trees.tree_download import receive_tree
from stoker.transfer.trees.tree_sources import FleetTreeSourceFinder


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
        origins = FleetTreeSourceFinder(client, worker="child", open_peer=lambda _: None)
        receive_tree(origins, tree, store, stop=DownloadStop(), clock=clock, on_step=at)
    store.close()


main()
