from __future__ import annotations

import os
import platform

from stoker.host.identity import surroundings


def test_a_computer_is_named_by_its_host_its_system_and_our_interpreter() -> None:
    about = surroundings()
    assert about["host"] == platform.node()
    assert about["system"] == f"{platform.system()} {platform.release()}"
    assert about["machine"] == platform.machine()
    assert about["cpus"] == str(os.cpu_count())
    assert about["stoker's python"].endswith(f" {platform.python_version()}")
