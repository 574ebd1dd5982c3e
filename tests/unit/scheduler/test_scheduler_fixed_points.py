"""System B's fixed points, on its sample cluster: what its users got, they get here."""

from __future__ import annotations

import pytest

from stoker.core.device import MIB
from stoker.core.frozen import changed
from stoker.scheduler.fit import choose, shape_of
from stoker.scheduler.node_index import NodeIndex
from stoker.scheduler.offers import NodeOffer, offer_of
from tests.unit.scheduler.fleets import DESKTOP, SAMPLE, gpu_job


def score(offer: NodeOffer, vram_mb: int) -> float | None:
    choice = choose(shape_of(gpu_job(vram_mb)), offer)
    return None if choice is None else choice.key.score


def test_an_idle_desktop_scores_2_61_for_8000_mb() -> None:
    assert score(offer_of(DESKTOP), 8000) == pytest.approx(20879 / 8000)


def test_a_desktop_with_one_adapter_of_8000_mb_scores_0_80() -> None:
    idle = offer_of(DESKTOP)
    (device,) = idle.devices
    busy = changed(idle, jobs=1, devices=(changed(device, jobs=1, promised_bytes=8000 * MIB),))
    assert score(busy, 8000) == pytest.approx(0.80, abs=0.01)


def test_an_exact_fit_has_a_score_and_one_mib_more_takes_the_whole_card() -> None:
    idle = offer_of(DESKTOP)
    exact, over = choose(shape_of(gpu_job(20879)), idle), choose(shape_of(gpu_job(20880)), idle)
    assert exact is not None
    assert over is not None
    assert exact.devices[0].is_shared
    assert not over.devices[0].is_shared
    assert score(idle, 24564) is not None
    assert score(idle, 24565) is None


@pytest.mark.parametrize(
    ("vram_mb", "nodes"),
    [
        (6000, ["desktop", "desktop", "desktop", None]),
        (2000, ["desktop", "desktop", "desktop", "edge"]),
        (30000, [None, None, None, None]),
    ],
    ids=["6000", "2000", "30000"],
)
def test_four_jobs_go_where_they_always_went(vram_mb: int, nodes: list[str | None]) -> None:
    board = NodeIndex(SAMPLE)
    shape = board.shape_of(gpu_job(vram_mb))
    placed = [board.place(shape) for _ in range(4)]
    assert [one.node if one else None for one in placed] == nodes


def test_the_sample_takes_five_jobs_at_once() -> None:
    assert sum(offer.slots for offer in SAMPLE) == 5
