"""Trees over real TLS: people send them, machines with certificates fetch them, from each other too; others may not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.capability import Capability
from stoker.core.clock import SystemClock
from stoker.core.digests import digest_bytes
from stoker.core.errors import Forbidden, NotFound, StaleLease
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import FleetIdentity, HttpSettings
from stoker.protocol.client import FleetClient
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Claim, Hello, MachineInventory
from stoker.protocol.tree_messages import PACKED_BYTES, SourcesRequest, TreeLocation
from stoker.store.local_store import LocalStore
from stoker.store.trees import scan_tree
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.peer_server import PeerAdmission, PeerServer, share_trees
from stoker.transfer.trees.tree_download import receive_tree
from stoker.transfer.trees.tree_sources import FleetTreeSourceFinder, peer_opener
from stoker.transfer.trees.tree_upload import FolderFileSource, send_tree
from tests.contract.queue_driving import order
from tests.servers.coordinator import TOKEN, Fleet, coordinator
from tests.servers.tls_line import Lines

CLOCK = SystemClock()


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("secure")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder, is_secure=True) as fleet:
        yield fleet


class Machine:
    """A machine that joined: its certificate, its line to the coordinator, its store."""

    def __init__(self, fleet: Fleet, lines: Lines, name: str, folder: Path) -> None:
        status, invite = lines.open(token=TOKEN).ask("POST", "/v1/invites", {})
        assert status == 200
        status, _, certificate = lines.join(str(invite["code"]), name)
        assert status == 200
        assert fleet.secure is not None
        self.name = name
        self.identity = FleetIdentity(ca_file=fleet.secure.ca_file, certificate_file=certificate)
        self.transport = Urllib3Transport(HttpSettings(fleet=self.identity))
        self.client = FleetClient(self.transport, fleet.url, clock=CLOCK)
        self.store = LocalStore(str(folder / name), clock=CLOCK)
        self.store.open()

    def origins(self) -> FleetTreeSourceFinder:
        opener = peer_opener(self.identity, clock=CLOCK)
        return FleetTreeSourceFinder(self.client, worker=self.name, open_peer=opener)

    def hello(self, url: str = "", *trees: str) -> None:
        found = Capability(
            hostname=self.name,
            os="linux",
            arch="x86_64",
            cpu_cores=8,
            ram_total_bytes=1 << 36,
            ram_available_bytes=1 << 36,
        )
        said = Hello(
            worker=self.name,
            incarnation=f"incarnation-{self.name}",
            capability=found.to_dict(),
            capability_digest="d",
            holdings=MachineInventory(trees=trees),
            contents_at=url,
        )
        self.client.hello(said)

    def close(self) -> None:
        self.transport.close()
        self.store.close()


def test_code_goes_from_a_person_to_one_machine_and_from_that_to_another(fleet: Fleet, tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(os.urandom(8).hex())
    (root / "large.bin").write_bytes(os.urandom(PACKED_BYTES * 2))
    tree = scan_tree(str(root))
    send_tree(fleet.client(), tree, FolderFileSource(str(root)))
    with closing(Lines(fleet, tmp_path)) as lines:
        one, two = Machine(fleet, lines, "one", tmp_path), Machine(fleet, lines, "two", tmp_path)
    with closing(one), closing(two):
        one.hello()
        two.hello()
        with one.origins() as origins:
            assert receive_tree(origins, tree.digest(), one.store, stop=DownloadStop(), clock=CLOCK).tree == tree
        admitting = PeerAdmission(one.client.live_certificates, clock=CLOCK)
        server = share_trees(fleet.url, one.identity, one.store, clock=CLOCK, admits=admitting.admits)
        assert isinstance(server, PeerServer)
        try:
            one.hello(server.url, tree.digest())
            # From now on nobody gets it from the coordinator.
            fleet.keeping.objects.remove(next(e.sha256 for e in tree.entries if e.path == "large.bin"))
            with two.origins() as origins:
                assert receive_tree(origins, tree.digest(), two.store, stop=DownloadStop(), clock=CLOCK).tree == tree
            _is_refused_once_it_is_forgotten(
                fleet, two, TreeLocation(machine="one", url=server.url), tree.digest(), admitting
            )
        finally:
            server.close()
        # A machine without a lease can have no result to send.
        with pytest.raises(StaleLease):
            one.client.send_pack(b"")
        with pytest.raises(StaleLease):
            one.client.keep_tree(tree.digest(), b"")
        with pytest.raises(StaleLease):
            one.client.want_tree(tree.digest())
        with pytest.raises(StaleLease):
            one.client.missing([tree.digest()])
        with pytest.raises(Forbidden):
            one.client.sources(SourcesRequest(worker="two", trees=(tree.digest(),)))


def _is_refused_once_it_is_forgotten(
    fleet: Fleet, one: Machine, place: TreeLocation, tree: str, known: PeerAdmission
) -> None:
    opened = peer_opener(one.identity, clock=CLOCK)(place)
    assert opened is not None
    line = opened
    with closing(line.http):
        assert line.tree_listing(tree)
        fleet.client().change_machine(one.name, "forget")
        # As after half a minute: with the next question, the coordinator is asked again.
        known._heard_s = known._asked_s = None
        with pytest.raises(Forbidden, match="revoked"):
            line.tree_listing(tree)


def test_nobody_adds_to_an_upload_of_another_s(fleet: Fleet, tmp_path: Path) -> None:
    data = os.urandom(1000)
    person = fleet.client()
    begun = person.begin_upload(digest_bytes(data), len(data))
    person.append_upload(begun.id, data[:400], offset=0)
    with closing(Lines(fleet, tmp_path)) as lines:
        machine = Machine(fleet, lines, "four", tmp_path)
    with closing(machine):
        machine.hello()
        person.submit(Submission(jobs=(order("four"),)))
        claim = Claim(request_id="request-four", worker="four", incarnation="incarnation-four")
        assert machine.client.claim(claim).grants
        with pytest.raises(NotFound):
            machine.client.append_upload(begun.id, b"other bytes", offset=400)
        with pytest.raises(NotFound):
            machine.client.finish_upload(begun.id)
        assert machine.client.begin_upload(digest_bytes(data), len(data)).id != begun.id
    person.append_upload(begun.id, data[400:], offset=400)
    assert person.finish_upload(begun.id).is_known


def test_strangers_get_nothing(fleet: Fleet) -> None:
    nobody = fleet.client(token="")
    for ask in (
        lambda: nobody.tree_listing("0" * 64),
        lambda: nobody.send_pack(b""),
        lambda: nobody.missing(["0" * 64]),
        lambda: nobody.sources(SourcesRequest(worker="one", trees=())),
    ):
        with pytest.raises(Forbidden):
            ask()
