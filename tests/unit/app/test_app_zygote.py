"""The warm process that stages are forked from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.api.app_parts import read_settings
from stoker.app.app import App


def test_a_forked_stage_imports_nothing_but_its_own_module(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assembly = App(read_settings({"STOKER_HOME": str(tmp_path)}, str(tmp_path)))
    try:
        zygote = assembly.process_runner._warm()
        forked = zygote.fork("tests.unit.app.late_imports:run_work", {"out": str(out)})
        events: list[dict[str, Any]] = []
        while not forked.has_no_more_events:
            events += forked.read_events(10.0)
    finally:
        assembly.close()
    assert events == [{"outcome": "finished", "imported": []}]
