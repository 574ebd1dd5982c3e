"""What a coordinator tidies up by itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

from stoker.coordinator.storage.retention import UPLOAD_GRACE_S, Chores
from stoker.coordinator.storage.storage import CoordinatorStorage
from stoker.core.clock import SystemClock


def test_an_upload_that_nobody_goes_on_with_goes_without_a_prune_and_a_young_one_stays(tmp_path: Path) -> None:
    keeping = CoordinatorStorage(str(tmp_path), SystemClock())
    old, young = (keeping.bundles.begin(sign * 64, 10).id for sign in "ab")
    keeping.bundles.append(old, 0, b"half")
    long_ago_s = time.time() - UPLOAD_GRACE_S - 60
    (folder,) = (path for path in tmp_path.rglob(old) if path.is_dir())
    for path in (*folder.iterdir(), folder):
        os.utime(path, (long_ago_s, long_ago_s))
    with Chores(keeping.objects):
        # The first time comes at once, and the end waits for it.
        pass
    assert not folder.exists()
    assert keeping.bundles.upload(young).offset == 0
    keeping.close()
