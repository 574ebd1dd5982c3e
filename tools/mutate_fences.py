"""Take the fences of the fleet away one by one: for each, a test that is named here must turn red.

    python tools/mutate_fences.py [--only WORD] [--jobs N]     a table; ends with 1 if a fence can go unnoticed

Everything happens in a copy of the tree. Tests on PostgreSQL are left out: they say the same, and take longer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from fence_list import FENCES, Fence

ROOT = Path(__file__).parents[1]
LONGEST_S = 600.0
PASSED, FAILED = 0, 1


def make_copy(copy: Path) -> Path:
    """Copy what tests need, compiled modules included: times are kept, so only what is changed is compiled again."""
    for name in ("src", "tests", "tools", "examples", "docs"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def run_tests(copy: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Run tests in a copy until one fails; gives pytest's code and that test."""
    asked = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not slow", "-k", "not postgresql"]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *asked, *tests],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    red = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return done.returncode, red[0].split()[1].rpartition("::")[2] if red else (done.stdout + done.stderr)[-300:]


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of the tests once a fence was away."""

    fence: Fence
    red: str
    """The first test that turned red; empty: none did."""
    took_s: float


def judge_all(fences: Sequence[Fence], jobs: int) -> Iterator[Judged]:
    """Take each away in turn, some at once. Raises `AssertionError` if a test is red with all of them in place."""
    with tempfile.TemporaryDirectory(prefix="fences-") as name, ThreadPoolExecutor(jobs) as crew:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            free.put(make_copy(Path(name) / str(number)))
        whole = free.get()
        code, said = run_tests(whole, tuple(sorted({test for fence in fences for test in fence.tests})))
        free.put(whole)
        assert code == PASSED, f"with all fences in place it ends with {code}: {said}"

        def judge(fence: Fence) -> Judged:
            copy, began_s = free.get(), time.monotonic()
            try:
                fence.take_away(copy / "src" / "stoker")
                code, red = run_tests(copy, fence.tests)
                return Judged(fence, red if code == FAILED else "", time.monotonic() - began_s)
            finally:
                shutil.copy(ROOT / "src" / "stoker" / fence.path, copy / "src" / "stoker" / fence.path)
                free.put(copy)

        yield from crew.map(judge, fences)


def main() -> int:
    parser = argparse.ArgumentParser(description="take fences away one by one; a test must turn red for each")
    parser.add_argument("--only", default="", help="fences whose name has this in it")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    given = parser.parse_args()
    chosen = [fence for fence in FENCES if given.only in fence.name]
    unnoticed = 0
    print("| fence | the test that turned red | s |\n|---|---|---|")
    for judged in judge_all(chosen, given.jobs):
        unnoticed += not judged.red
        red = f"`{judged.red}`" if judged.red else "**none**"
        print(f"| {judged.fence.name} | {red} | {judged.took_s:.1f} |", flush=True)
    print(f"\n{len(chosen)} fences, {unnoticed} of which may go unnoticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
