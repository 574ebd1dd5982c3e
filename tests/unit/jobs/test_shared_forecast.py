"""How many trials are foreseen to share a process, and what that takes."""

from __future__ import annotations

import pytest

from stoker.authoring import JsonKind, ProcessSharing, stage
from stoker.core.device import GIB, Needs
from stoker.core.digests import digest_value
from stoker.core.job import TrialNodes
from stoker.engine.plan import PlanNode
from stoker.engine.stage import SharedBase
from stoker.jobs.adapter_jobs import SharedProcessCapacity, estimate_shared_processes
from stoker.jobs.trials import Trial
from tests.fakes.jobs import made_trial


class Made(JsonKind):
    name = "forecast/made"
    version = 1


@stage("forecast/train", version=1, together=ProcessSharing(run="x:y", key=lambda _args, _digests: "w"))
def train() -> Made:
    raise NotImplementedError


def node(number: int, needs: Needs) -> PlanNode:
    return PlanNode(id=f"{number}.train", stage=train, args={}, inputs={}, asks=needs)


def trial(number: int, word: str) -> Trial:
    nodes = TrialNodes(final=f"{number}.train", keep=(), nodes=(f"{number}.train",))
    return made_trial(
        number=number, label=f"n={number}", point={}, args={"w": word}, job_id=digest_value("t", number), nodes=nodes
    )


def foretell(words: str, needs: Needs, room: SharedProcessCapacity, known: int = 0) -> list[tuple[int, int, float]]:
    nodes = tuple(node(number, needs) for number in range(1, len(words) + 1))
    trials = [trial(number, word) for number, word in enumerate(words, 1)]

    def shared(one: Trial) -> SharedBase:
        word = "" if one.spec.args["w"] == "-" else one.spec.args["w"]
        return SharedBase(share_key=word, base_bytes=0, member_bytes=0, base_ram_bytes=0, member_ram_bytes=0)

    told = estimate_shared_processes(nodes[known:], trials, shared, room)
    return [(one.members, one.at_once, one.predicted_bytes / GIB) for one in told]


ON_GPU = Needs(gpu=1, vram_gib=3.0, base_gib=2.0, shares=True)


@pytest.mark.parametrize(
    ("words", "needs", "room", "told"),
    [
        ("aaaa", ON_GPU, SharedProcessCapacity(device_bytes=20 * GIB), [(4, 4, 6.0)]),
        ("aaaa", ON_GPU, SharedProcessCapacity(device_bytes=5 * GIB), [(4, 3, 5.0)]),
        # One begins whatever is free at the moment: the ledger lets it wait.
        ("aaaa", ON_GPU, SharedProcessCapacity(device_bytes=GIB), [(4, 1, 3.0)]),
        ("aaaa", ON_GPU, SharedProcessCapacity(), [(4, 4, 6.0)]),
        (
            "aaaa",
            Needs(gpu=1, vram_gib=3.0, base_gib=2.0, most=2),
            SharedProcessCapacity(device_bytes=20 * GIB),
            [(4, 2, 4.0)],
        ),
        ("aabb", ON_GPU, SharedProcessCapacity(device_bytes=20 * GIB), [(2, 2, 4.0), (2, 2, 4.0)]),
        ("--", ON_GPU, SharedProcessCapacity(device_bytes=20 * GIB), []),
        ("aaa", Needs(memory_gib=1.5, base_memory_gib=1.0), SharedProcessCapacity(memory_bytes=2 * GIB), [(3, 2, 2.0)]),
    ],
)
def test_as_many_go_together_as_have_room(
    words: str, needs: Needs, room: SharedProcessCapacity, told: list[tuple[int, int, float]]
) -> None:
    assert foretell(words, needs, room) == told


def test_trials_whose_result_is_known_take_no_part() -> None:
    assert foretell("aaa", ON_GPU, SharedProcessCapacity(device_bytes=20 * GIB), known=2) == [(1, 1, 3.0)]
    assert foretell("aaa", ON_GPU, SharedProcessCapacity(device_bytes=20 * GIB), known=3) == []
