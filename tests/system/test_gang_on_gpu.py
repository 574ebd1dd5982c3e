"""On a real card: ranks that share it see each other's windows, what can't be is a clear error, and its memory returns.

Needs an NVIDIA card and torch in this interpreter. Several cards are not asked for, and were never tried.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest

from stoker.core.errors import RankFailed
from stoker.gang import Buffer, Gang, RankConfig, this_rank
from tests.later import imported_later
from tests.unit.host.real_processes import wait_until

with imported_later("torch"):
    import torch

pytestmark = pytest.mark.gpu


SLACK_MIB = 64
"""What other programs on the card may take meanwhile."""


def used_mib() -> int:
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0])


@pytest.fixture(scope="module", autouse=True)
def _a_card() -> None:
    smi = shutil.which("nvidia-smi")
    asked = subprocess.run([smi, "--list-gpus"], capture_output=True, text=True, check=False) if smi else None
    if asked is None or asked.returncode or "GPU" not in asked.stdout:
        pytest.skip("there is no NVIDIA device here")


@pytest.fixture(autouse=True)
def _its_memory_returns() -> Iterator[None]:
    before = used_mib()
    yield
    wait_until(lambda: used_mib() <= before + SLACK_MIB)


def write_to_the_next() -> int:
    from torch import distributed

    rank = this_rank()
    rank.tensor("x").fill_(255)
    torch.cuda.synchronize()
    distributed.barrier()
    rank.peer_tensor((rank.rank + 1) % rank.nranks, "x").fill_(rank.rank)
    torch.cuda.synchronize()
    distributed.barrier()
    mine = rank.tensor("x")
    assert bool((mine == mine[0]).all())
    return int(mine[0].item())


def add_up() -> float:
    from torch import distributed

    told = torch.ones(1024, device="cuda")
    distributed.all_reduce(told)
    torch.cuda.synchronize()
    return float(told.sum().item())


def die() -> None:
    if this_rank().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    this_rank().tensor("x").fill_(1)
    torch.cuda.synchronize()
    signal.pause()


def on_one_card(count: int) -> list[RankConfig]:
    return [RankConfig(device_id=0, buffers=[Buffer("pad", 100), Buffer("x", 1 << 20)]) for _ in range(count)]


def test_one_rank_with_nccl_comes_up_and_adds() -> None:
    with Gang(ranks=[RankConfig(device_id=0)], backend="nccl") as gang:
        (context,) = gang.contexts
        assert context.device_ctx
        assert gang.run(add_up) == [1024.0]


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_on_one_card_see_each_others_bytes(count: int) -> None:
    with Gang(ranks=on_one_card(count), backend="gloo", device_kind="cuda") as gang:
        assert all(context.actual_window_size >= 1 << 20 for context in gang.contexts)
        assert all(context.buffer_ptrs["x"] % 256 == 0 for context in gang.contexts)
        assert gang.run(write_to_the_next) == [(rank - 1) % count for rank in range(count)]


def test_what_is_staged_comes_back_through_the_card() -> None:
    data = os.urandom(1 << 16)
    buffers = [Buffer("x", len(data), load_from_host=True, store_to_host=True)]
    with Gang(ranks=[RankConfig(0, buffers, inputs={"x": data})], backend="gloo", device_kind="cuda") as gang:
        assert gang.store_to_host() == [{"x": data}]


def test_two_ranks_of_nccl_on_one_card_are_refused_with_its_own_words() -> None:
    with pytest.raises(RankFailed) as caught, Gang(ranks=[RankConfig(0), RankConfig(0)], backend="nccl", timeout_s=60):
        pass
    assert caught.value.phase == "COMM"
    assert "GPU-" in str(caught.value)
    assert "uplicate GPU" in f"{caught.value} {caught.value.traceback}"


def test_a_window_larger_than_the_card_is_a_clear_error() -> None:
    configs = [RankConfig(0, [Buffer("x", 200 << 30)])]
    with pytest.raises(RankFailed) as caught, Gang(ranks=configs, backend="gloo", device_kind="cuda"):
        pass
    assert caught.value.phase == "WINDOW"
    assert "memory" in str(caught.value).lower()


def test_a_rank_killed_with_an_exported_window_takes_the_others_along() -> None:
    with Gang(ranks=on_one_card(3), backend="gloo", device_kind="cuda") as gang:
        with pytest.raises(RankFailed) as caught:
            gang.run(die)
        assert caught.value.rank == 1
        assert "SIGKILL" in str(caught.value)
