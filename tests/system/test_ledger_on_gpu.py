"""On a real card: two trainings that together need more than it has run one after the other, and neither dies.

Without the ledger the same pair ends out of memory, which is shown first. Needs an NVIDIA card with little else on it,
and a Python with torch: this one, or `python3`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import stoker
from tests.unit.host.real_processes import wait_until

pytestmark = pytest.mark.gpu

TRAIN = """
import json, os, sys, time
import torch

share, folder, name = float(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.zeros(1, device="cuda")
meeting = sys.argv[4:]
if meeting:
    # Both have opened the card and seen it empty before either takes anything: the race that nobody can lose alone.
    open(os.path.join(folder, name), "w").close()
    while not all(os.path.exists(os.path.join(folder, other)) for other in meeting):
        time.sleep(0.01)
begun = time.time()
total = torch.cuda.get_device_properties(0).total_memory
try:
    model = torch.empty(int(total * share), dtype=torch.uint8, device="cuda")
    for _ in range(20):
        model.add_(1)
        torch.cuda.synchronize()
        time.sleep(0.1)
except torch.OutOfMemoryError as error:
    print(json.dumps({"name": name, "oom": True}), flush=True)
    sys.exit(3)
print(json.dumps({"name": name, "oom": False, "begun": begun, "ended": time.time()}), flush=True)
"""


@cache
def torch_python() -> str:
    """A Python whose torch sees a card, or nothing."""
    if not (os.path.exists("/dev/nvidiactl") or shutil.which("nvidia-smi")):
        # No driver: it takes seconds to hear that from torch.
        return ""
    for python in (sys.executable, shutil.which("python3") or ""):
        if python:
            asked = [python, "-c", "import torch, sys; sys.exit(not torch.cuda.is_available())"]
            if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
                return python
    return ""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    if not torch_python():
        pytest.skip("no torch here that sees a card")
    return Shop(tmp_path)


class Shop:
    """Starts trainings on the first card, with and without the ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(TRAIN)
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STOKER")},
            "STOKER_HOME": str(folder / "home"),
            "STOKER_LEDGER": str(folder / "ledger"),
            # Also where Stoker is not installed, but only on the path, and that relative.
            "PYTHONPATH": str(Path(stoker.__file__).resolve().parents[1]),
        }
        self.running: list[subprocess.Popen[str]] = []

    def train(self, name: str, share: float, *meeting: str) -> list[str]:
        return [torch_python(), str(self.script), str(share), str(self.folder), name, *meeting]

    def start(self, command: list[str]) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            command, env=self.env, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.running.append(started)
        return started

    def guarded(self, name: str, share: float, *more: str) -> subprocess.Popen[str]:
        size = int(self.total_bytes() * share) + 2**30
        asked = ["--wait", str(size), "--on", self.devices()[0]["device"], "--job", name, "--timeout", "120s", *more]
        return self.start([*self.stoker(), "machines", "memory", *asked, "--", *self.train(name, share)])

    def stoker(self) -> list[str]:
        return [sys.executable, "-P", "-m", "stoker"]

    def devices(self) -> list[dict]:
        asked = [*self.stoker(), "machines", "memory", "--json"]
        said = subprocess.run(asked, env=self.env, cwd=self.folder, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr
        return [json.loads(line) for line in said.stdout.splitlines()]

    @cache  # noqa: B019 - one shop per test
    def total_bytes(self) -> int:
        return int(self.devices()[0]["total_bytes"])


def told(process: subprocess.Popen[str]) -> tuple[int, dict, str]:
    out, err = process.communicate(timeout=180)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return process.returncode, lines[-1] if lines else {}, err


def test_without_the_ledger_a_pair_that_is_too_large_ends_out_of_memory(shop: Shop) -> None:
    pair = [shop.start(shop.train(name, 0.6, "a", "b")) for name in ("a", "b")]
    ends = [told(process) for process in pair]
    assert sorted(code for code, _, _ in ends) == [0, 3], ends


@pytest.mark.parametrize("more", [(), ("--share",)], ids=["alone", "sharing"])
def test_with_the_ledger_one_waits_and_both_succeed(shop: Shop, more: tuple[str, ...]) -> None:
    first = shop.guarded("first", 0.6, *more)
    wait_until(lambda: bool(shop.devices()[0]["holders"]))
    second = shop.guarded("second", 0.6, *more)
    (code_1, ran_1, err_1), (code_2, ran_2, err_2) = told(first), told(second)
    assert (code_1, code_2) == (0, 0), err_1 + err_2
    assert "queue position 1" in err_2
    assert ran_2["begun"] >= ran_1["ended"]
    assert shop.devices()[0]["holders"] == []


def test_a_pair_that_fits_shares_the_card(shop: Shop) -> None:
    pair = [shop.guarded(name, 0.3, "--share") for name in ("one", "two")]
    (code_1, ran_1, err_1), (code_2, ran_2, err_2) = map(told, pair)
    assert (code_1, code_2) == (0, 0), err_1 + err_2
    assert max(ran_1["begun"], ran_2["begun"]) < min(ran_1["ended"], ran_2["ended"]), "they did not run together"


def test_who_never_asked_is_seen_by_the_drivers_measure(shop: Shop) -> None:
    stranger = shop.start(shop.train("stranger", 0.6))
    wait_until(lambda: shop.devices()[0]["free_bytes"] < shop.total_bytes() // 2, timeout_s=60.0)
    waiting = shop.guarded("waits", 0.6, "--share")
    code, ran, err = told(waiting)
    assert told(stranger)[0] == 0
    assert code == 0, err
    assert "free by the driver's measure" in err
    assert ran["oom"] is False
