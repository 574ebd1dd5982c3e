from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_reference_pages_are_what_the_code_says() -> None:
    tool = Path(__file__).parents[2] / "tools" / "reference.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
