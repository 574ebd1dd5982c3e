"""What do the tests say that need a real GPU, which no continuous integration has?

python benchmarks/gpu_tests.py                    # tells what was recorded on an H200
python benchmarks/gpu_tests.py --from FILE        # tells what was recorded elsewhere
python benchmarks/gpu_tests.py --measure FILE     # runs them here; needs a GPU, torch and pytest
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import recordings

FILES = (
    "tests/system/test_probes_on_gpu.py",
    "tests/system/test_ledger_on_gpu.py",
    "tests/system/test_gang_on_gpu.py",
    "tests/system/test_adapters_on_gpu.py",
    "tests/system/test_telemetry_on_gpu.py",
    "tests/system/test_crossval_on_gpu.py",
    "tests/system/test_full_on_gpu.py",
)
ASKS = {
    FILES[0]: "NVML, nvidia-smi and torch agree: tests that failed",
    FILES[1]: "the ledger turns a pair that is too large into one that waits: tests that failed",
    FILES[2]: "ranks on one card see each other's windows, and its memory returns: tests that failed",
    FILES[3]: "adapters in company equal PEFT alone, stay apart and shrink: tests that failed",
    FILES[4]: "samples agree with nvidia-smi, show work, and are cheap: tests that failed",
    FILES[5]: "a fixture gives the same logits on the card in each precision, a fallback is caught: tests that failed",
    FILES[6]: "all weights train as a plain loop trains them, within their memory: tests that failed",
}


def main() -> int:
    bench, recording = recordings.start("gpu_tests", str(__doc__), "gpu_tests_h200.json", _measure)
    told = recording.told
    bench.verdicts.append(["test", "said"])
    for file, question in ASKS.items():
        lines = [line.split(" ", 1) for line in told["said"] if file in line]
        failed = sum(1 for said, _ in lines if said != "PASSED")
        count = len(lines)
        ours = failed if count else None
        bench.rows.append(recordings.row(question, f"none of {count}", ours, 0, 0))
        bench.verdicts += [[test.split(" - ")[0].split("::")[-1].replace("|", "/"), said] for said, test in lines]
    if "provenance" in told:
        bench.verdicts.append(["(how this was recorded)", told["provenance"]])
    return bench.finish()


def _measure(file: Path, python: str) -> None:
    options = ["-p", "no:cacheprovider", "-p", "no:logging", "-q", "-rA", "--tb=short", "--noconftest"]
    command = ["-m", "pytest", *options, *FILES]
    settings = {**os.environ, "PYTHONPATH": str(recordings.SOURCES)}
    ran = subprocess.run(
        [python, *command], cwd=recordings.HERE.parent, env=settings, capture_output=True, text=True, check=False
    )
    marks = ("PASSED ", "FAILED ", "ERROR ", "SKIPPED ")
    told = {
        "measured_at": datetime.now(UTC).isoformat(timespec="minutes"),
        "gpu": _gpu(),
        "versions": json.loads(subprocess.run([python, "-c", _VERSIONS], stdout=subprocess.PIPE, check=True).stdout),
        "commands": ["PYTHONPATH=$PWD/src python " + " ".join(command)],
        "said": [line for line in ran.stdout.splitlines() if line.startswith(marks)],
    }
    file.write_text(json.dumps(told, indent=1) + "\n")


_VERSIONS = """
import json, platform
from importlib.metadata import version
print(json.dumps({"python": platform.python_version(), **{name: version(name) for name in ("pytest", "torch")}}))
"""


def _gpu() -> str:
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
