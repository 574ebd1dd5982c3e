"""Pages about machines, models and simulations before a real coordinator, with recorded telemetry of two devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stoker.core.clock import SystemClock
from stoker.core.device import GIB, Backend, Device, TriState, TriStateAnswer
from stoker.core.digests import Digest, Tree, TreeEntry
from stoker.protocol.client import FleetClient
from stoker.protocol.job_messages import Submission
from stoker.protocol.lease_messages import Finish
from stoker.protocol.telemetry_messages import DeviceRows, DeviceTelemetry, TelemetryReport, TelemetryRowMessage
from stoker.protocol.tree_messages import head
from stoker.store.archives.archive_members import listing_bytes
from stoker.web.assets import Pages
from stoker.web.backend import ForwardingBackend
from stoker.web.ui_server import UiServer
from tests.contract.queue_driving import order
from tests.fakes.page_machines import CARD, rows
from tests.servers.coordinator import Fleet, coordinator
from tests.servers.hand import Hand, said
from tests.system.browser import Tab, chromium
from tests.system.web_desk import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

YES = TriStateAnswer(verdict=TriState.YES)
CARDS = tuple(
    Device(
        uuid=f"GPU-{number}",
        backend=Backend.CUDA,
        name="NVIDIA L4",
        total_bytes=24 * GIB,
        free_bytes=24 * GIB,
        installed=YES,
        visible=YES,
        usable=YES,
    )
    for number in range(2)
)
FILES = {"model-card.md": CARD.encode(), "weights.bin": b"0"}
ON_DEVICE = {"wish": "require", "vram_bytes": 6 * GIB, "ram_bytes": GIB, "may_share": True}


def recorded(now_s: float) -> TelemetryReport:
    """Return a report with an hour of the host and of one device; the other one is silent."""
    messages = {
        uuid: tuple(
            TelemetryRowMessage(start_s=row.start_s, count=row.count, values=row.values)
            # Also of the moments to come: a job that has just started has some.
            for row in rows(uuid, now_s - 3550, now_s + 50)
        )
        for uuid in ("", "GPU-0")
    }
    return TelemetryReport(
        worker="desk",
        wall_s=now_s,
        devices=(
            DeviceTelemetry(device="", utilisation_percent=31.0, memory_used_bytes=GIB, memory_total_bytes=64 * GIB),
            DeviceTelemetry(
                device="GPU-0",
                utilisation_percent=97.0,
                memory_used_bytes=7 * GIB,
                memory_total_bytes=24 * GIB,
                temperature_c=71.0,
            ),
        ),
        rows=tuple(
            DeviceRows(device=uuid, name="NVIDIA L4" * bool(uuid), rows=some) for uuid, some in messages.items()
        ),
    )


def result(client: FleetClient, **files: bytes) -> str:
    """Store a tree at the coordinator."""
    digests = {name: Digest(sha256(data).hexdigest()) for name, data in files.items()}
    tree = Tree(tuple(TreeEntry(name, len(data), digests[name]) for name, data in sorted(files.items())))
    client.want_tree(tree.digest(), files=len(files), size_bytes=tree.size_bytes)
    client.send_pack(b"".join(head(digests[name], len(data)) + data for name, data in files.items()))
    client.keep_tree(tree.digest(), listing_bytes(tree))
    return tree.digest()


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A machine with two devices, a completed job with a model card, one that runs on a device, and some that wait."""
    folder = tmp_path_factory.mktemp("fleet")
    path = folder / "queue.db"
    path.write_bytes(sqlite_template.read_bytes())
    with coordinator(f"sqlite:///{path}", folder) as fleet:
        client = fleet.client()
        hand = Hand(client, devices=CARDS)
        fleet.keeping.telemetry.note(recorded(SystemClock().wall_s()))
        client.submit(Submission(jobs=(order("base", requirements=ON_DEVICE),)))
        done = hand.start()
        size_bytes = sum(map(len, FILES.values()))
        tree = result(client, **FILES)
        client.write(done.job, Finish(**said(done), tree=tree, size_bytes=size_bytes, metrics={"loss": 0.5}))
        tuned = order("tuned", requirements=ON_DEVICE, after=("base",))
        client.submit(Submission(jobs=(tuned, *(order("waits", n, expected_s=3600.0) for n in range(1, 9)))))
        hand.start()
        yield fleet


@pytest.fixture(scope="module")
def tab(fleet: Fleet) -> Iterator[Tab]:
    ui = UiServer(ForwardingBackend(fleet.client().transport), pages=Pages(), clock=SystemClock())
    ui.start()
    with chromium() as browser:
        tab = Tab(browser)
        tab.open(ui.link())
        yield tab
        tab.close()
    ui.stop()


def go(page: Page, link: str) -> None:
    page.goto(f"{page.url.partition('#')[0]}{link}")


def test_a_machine_has_reserved_measured_and_free_memory_charts_and_what_ran_there(tab: Tab):
    page = tab.page
    go(page, "#/machines")
    first, silent = (page.get_by_role("row", name=uuid) for uuid in ("GPU-0", "GPU-1"))
    expect(first).to_contain_text("6.0 GiB reserved · 7.0 GiB in use · 17.0 GiB free of 24.0 GiB")
    expect(first.get_by_role("list", name="jobs on it")).to_have_text(re.compile(r"\s*tuned\s+6\.0 GiB\s*"))
    expect(first.get_by_role("img", name="utilisation of NVIDIA L4 of desk")).to_be_visible()
    expect(silent).to_contain_text("0 B reserved · – in use · – free of 24.0 GiB")
    assert silent.get_by_role("cell").all_inner_texts()[1:] == ["–"] * 5, "what is not measured is not zero"
    expect(page.get_by_role("img", name="2 attempts of 2 jobs")).to_be_visible()
    page.get_by_role("link", name="desk", exact=True).click()
    expect(page.get_by_role("img", name="Power: NVIDIA L4")).to_be_visible()
    expect(page.get_by_role("region", name="Who holds what")).to_contain_text("tuned")
    go(page, "#/job/tuned?tab=resources")
    expect(page.get_by_role("heading", name="Memory in use")).to_be_visible()
    assert (tab.complaints, tab.violations()) == ([], [])
    go(page, "#/machine/nowhere")
    expect(page.get_by_role("alert")).to_contain_text("machine nowhere not found")
    tab.complaints.clear()


def test_a_result_leads_to_its_card_and_its_lineage_and_a_simulation_to_an_answer(tab: Tab):
    page = tab.page
    go(page, "#/job/base?tab=model-card")
    expect(page.get_by_role("article", name="model card")).to_contain_text("species from iris")
    assert page.locator("article img").count() == 0
    go(page, "#/models")
    row = page.get_by_role("row", name="base")
    expect(row).to_contain_text("loss 0.5")
    row.get_by_role("link").first.click()
    expect(page.locator("h1")).to_have_text(re.compile("[0-9a-f]{12}"))
    expect(page.get_by_role("region", name="Facts")).to_contain_text("0.5")
    go(page, "#/simulation?add=desk:2")
    expect(page.get_by_label("with the change", exact=True)).to_contain_text("3 machines")
    expect(page.get_by_label("difference", exact=True)).to_contain_text("earlier")
    expect(page.get_by_role("region", name="table of the next jobs")).to_contain_text("waits/")
    go(page, "#/adapters")
    expect(page.locator("main")).to_contain_text("No adapters yet")
    assert (tab.complaints, tab.violations()) == ([], [])
