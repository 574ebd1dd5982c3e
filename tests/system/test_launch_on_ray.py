"""Workers as jobs of a real Ray cluster."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from stoker.core.errors import NoBackend, StokerError
from stoker.core.frozen import changed
from stoker.core.pool import Allocation, AllocationCause, AllocationState, Pool, PoolBackend
from stoker.devices.checkup import CheckStatus
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.launch.launchers import AllocationStatus
from stoker.launch.ray import RayLauncher
from tests.contract.launcher_cases import SECRET, make_stand_in, tickets
from tests.servers.ray_head import URL, ray_head, why_no_ray

FLEET = "4c1d0a"
T = TypeVar("T")


def until(found: Callable[[], T | None]) -> T:
    """Return what is found, once it is."""
    deadline_s = time.monotonic() + 180
    while (value := found()) is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.5)
    return value


@pytest.mark.slow
def test_a_real_cluster_starts_stops_and_forgets_workers() -> None:
    if why := why_no_ray():
        pytest.skip(why)
    # A short path: Ray has sockets in it.
    with tempfile.TemporaryDirectory(prefix="ray") as name, ray_head(Path(name)) as token:
        transport = Urllib3Transport(HttpSettings())
        try:
            live_one_life(Path(name), RayLauncher(transport, lambda: token))
            with pytest.raises(NoBackend, match="Invalid authentication token"):
                RayLauncher(transport, lambda: "wrong").look(
                    Pool(name="small", backend=PoolBackend.RAY, options={"address": URL}), fleet=FLEET
                )
        finally:
            transport.close()


def live_one_life(folder: Path, launcher: RayLauncher) -> None:
    python = str(make_stand_in(folder / "stand-in", "1"))
    pool = Pool(name="small", backend=PoolBackend.RAY, python=python, options={"address": URL})
    two = [Allocation(id="12e456", pool="small"), Allocation(id="7f3a2c", pool="small")]

    def shown(id: str, state: AllocationState) -> Callable[[], AllocationStatus | None]:
        return lambda: next(
            (one for one in launcher.look(pool, fleet=FLEET) if (one.id, one.state) == (id, state)), None
        )

    until(lambda: True if [one.verdict for one in launcher.check(pool)] == [CheckStatus.OK] * 3 else None)
    rendered = launcher.render(pool, two, fleet=FLEET)

    def submitted() -> bool | None:
        try:
            return len(launcher.submit(rendered, tickets(two))) == 2
        except StokerError:
            # The agent of a new node comes last.
            return None

    until(submitted)
    assert launcher.submit(rendered, tickets(two)) == {one.id: one.name for one in two}, "repeated"
    for one in two:
        until(shown(one.id, AllocationState.STARTED))
    until(lambda: True if len(list((folder / "stand-in").glob("ticket.*"))) == 2 else None)
    texts = {path.read_text() for path in (folder / "stand-in").glob("ticket.*")}
    assert texts == set(tickets(two).values())
    assert not any(SECRET in path.read_text() for path in (folder / "stand-in").glob("environment.*"))
    until(lambda: True if "the worker started" in launcher.log(pool, two[0]) else None)
    assert SECRET not in launcher.log(pool, two[0])
    launcher.clean(pool, two)
    launcher.cancel(pool, [two[0].name, "stoker-small-999999"])
    assert until(shown(two[0].id, AllocationState.ENDED)).cause is AllocationCause.CANCELLED_THERE
    assert shown(two[1].id, AllocationState.STARTED)() is not None, "left alone"
    launcher.cancel(pool, [two[1].name])
    until(shown(two[1].id, AllocationState.ENDED))
    (folder / "stand-in/exit").write_text("3")
    failed = changed(two[0], id="000003")
    launcher.submit(launcher.render(pool, [failed], fleet=FLEET), tickets([failed]))
    ended = until(shown(failed.id, AllocationState.ENDED))
    assert (ended.cause, ended.reason) == (AllocationCause.FAILED, "exit 3")
    launcher.clean(pool, [*two, failed])
    assert launcher.look(pool, fleet=FLEET) == ()
