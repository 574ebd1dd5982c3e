"""A tree of one large file, in process: sent to a coordinator, or received from it into a store, verified and durable.

`--way send` sends a file of a folder, which is hashed whole beside its parts because it may have changed; `--way
stored` one of this machine's store, as a worker sends results. `--way receive` is from after the imports to the tree's
record; `--way three` are three machines at once, each with a server of its own for the others. What to bring stands in
the environment: `FLEET_URL`, `FLEET_TOKEN`, `FLEET_CA` where it speaks TLS, and the file: `TREE_FILE`, `TREE_BYTES`,
`TREE_SHA256`. `executed` counts the tree's bytes; with `three` how many of them took it from the coordinator. `--way
steady` sends five trees of small files a second until it is ended.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import speak

import stoker.host.http.connections  # noqa: F401 - otherwise imported with the first request, inside the time
from stoker.core.clock import SystemClock
from stoker.core.digests import Digest, Tree, TreeEntry
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import FleetIdentity, HttpSettings
from stoker.protocol.client import FleetClient
from stoker.protocol.discovery import find_coordinator
from stoker.protocol.lease_messages import Hello
from stoker.store.local_store import LocalStore
from stoker.store.prune import resolve
from stoker.store.put import PutRequest, StoreWriter, survey
from stoker.store.trees import scan_tree
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.peer_files import PeerFiles
from stoker.transfer.peer_server import PeerServer
from stoker.transfer.trees.tree_download import receive_tree
from stoker.transfer.trees.tree_sources import FleetTreeSourceFinder, peer_opener
from stoker.transfer.trees.tree_upload import FolderFileSource, StoreFileSource, send_tree

CLOCK = SystemClock()


def main() -> None:
    asked = speak.read_arguments(ways=("receive", "send", "stored", "three", "steady"))
    if asked.way == "steady":
        _send_steadily(asked.home)
        return
    folder, name = os.path.split(os.environ["TREE_FILE"])
    tree = Tree((TreeEntry(name, int(os.environ["TREE_BYTES"]), Digest(os.environ["TREE_SHA256"])),))
    with ExitStack() as opened:
        client = _connect(opened)
        if asked.way == "send":
            started, used = time.perf_counter(), time.process_time()
            send_tree(client, tree, FolderFileSource(folder))
            done = tree.size_bytes
        elif asked.way == "stored":
            store = _store(os.path.join(asked.home, "store"), opened)
            wish = PutRequest(name="data", replace=False, source=os.environ["TREE_FILE"])
            StoreWriter(store, clock=CLOCK, heed=lambda _: None).put(survey(wish.source), wish)
            (record,) = resolve(store, "data")
            started, used = time.perf_counter(), time.process_time()
            send_tree(client, record.tree, StoreFileSource(store, record))
            done = record.tree.size_bytes
        elif asked.way == "receive":
            store = _store(os.path.join(asked.home, "store"), opened)
            # It can open the way to no other machine, so everything comes from the coordinator.
            origins = opened.enter_context(FleetTreeSourceFinder(client, worker="alone", open_peer=lambda _: None))
            started, used = time.perf_counter(), time.process_time()
            receive_tree(origins, tree.digest(), store, stop=DownloadStop(), clock=CLOCK)
            done = tree.size_bytes
        else:
            started, used = time.perf_counter(), time.process_time()
            done = _three(str(asked.home), tree.digest(), opened)
        ended, used = time.perf_counter(), time.process_time() - used
    shutil.rmtree(asked.home)
    speak.tell(asked, seconds=ended - started, total=None, executed=done, cpu_seconds=used)


def _send_steadily(home: Path) -> None:
    with ExitStack() as opened:
        client = _connect(opened)
        while True:
            due_s = time.monotonic() + 0.2
            for number in range(5):
                (home / f"{number}.bin").write_bytes(os.urandom(3000))
            send_tree(client, scan_tree(str(home)), FolderFileSource(str(home)))
            time.sleep(max(0.0, due_s - time.monotonic()))


def _three(home: str, tree: str, opened: ExitStack) -> int:
    threads, taken = [], []
    for name in ("one", "two", "three"):
        store = _store(os.path.join(home, name), opened)
        server = PeerServer(PeerFiles(store, clock=CLOCK), clock=CLOCK)
        server.start()
        opened.callback(server.close)
        client = _connect(opened)
        client.hello(
            Hello(
                worker=name,
                incarnation=f"incarnation-{name}",
                capability={"hostname": name},
                capability_digest="",
                contents_at=server.url,
            )
        )
        origins = opened.enter_context(
            FleetTreeSourceFinder(client, worker=name, open_peer=peer_opener(None, clock=CLOCK))
        )

        def bring(origins: FleetTreeSourceFinder = origins, store: LocalStore = store) -> None:
            places = origins.find(tree, frozenset())
            taken.append(0 if places[0].machine else 1)
            receive_tree(origins, tree, store, stop=DownloadStop(), clock=CLOCK)

        threads.append(threading.Thread(target=bring))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(taken)


def _connect(opened: ExitStack) -> FleetClient:
    ca, url = os.environ.get("FLEET_CA", ""), os.environ["FLEET_URL"]
    found = None if ca else find_coordinator(url, environment=os.environ, state=os.devnull)
    identity = found.identity if found is not None else FleetIdentity(ca_file=ca)
    transport = Urllib3Transport(HttpSettings(fleet=identity))
    opened.callback(transport.close)
    return FleetClient(transport, url, clock=CLOCK, token=os.environ["FLEET_TOKEN"])


def _store(root: str, opened: ExitStack) -> LocalStore:
    store = LocalStore(root, clock=CLOCK)
    store.open()
    opened.callback(store.close)
    return store


main()
