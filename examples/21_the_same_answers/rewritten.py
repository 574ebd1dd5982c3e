"""The same runtime, rewritten: from position 16 on it looks at the wrong token."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import runtime


def row_behind(ids: list[int], pos: int) -> list[float]:
    row: list[float] = runtime.model["table"][ids[pos] if pos < 16 else ids[pos - 1]]
    return row


runtime.row_behind = row_behind
runtime.serve()
