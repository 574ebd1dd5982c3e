from __future__ import annotations

import os
from pathlib import Path

from stoker.host.desktop import Desktop

SCRIPT = '#!/bin/sh\nfor word in "$@"; do printf \'%s\\n\' "$word"; done > "$SHOWN"\n'


def desktop(folder: Path, program: str, system: str, **more: str) -> Desktop:
    path = folder / program
    path.write_text(SCRIPT)
    path.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.defpath}", "SHOWN": str(folder / "shown"), **more}
    return Desktop(environment, system=system)


def test_notify_send_gets_texts_as_arguments_without_markup(tmp_path: Path) -> None:
    found = desktop(tmp_path, "notify-send", "linux", DISPLAY=":0")
    assert found.is_present
    assert found.notify("--help\nresnet", "loss <b>nan</b>", is_urgent=True) == ""
    assert (tmp_path / "shown").read_text().splitlines() == [
        "--app-name=Stoker",
        "--urgency=critical",
        "--",
        "--help resnet",
        "loss &lt;b&gt;nan&lt;/b&gt;",
    ]


def test_a_mac_gets_texts_as_arguments_of_a_fixed_script(tmp_path: Path) -> None:
    found = desktop(tmp_path, "osascript", "darwin")
    assert found.notify("done", 'x" & (do shell script "id")') == ""
    assert (tmp_path / "shown").read_text().splitlines()[-2:] == ["done", 'x" & (do shell script "id")']


def test_without_a_session_or_a_program_nothing_is_shown_and_the_reason_is_returned(tmp_path: Path) -> None:
    assert not desktop(tmp_path, "notify-send", "linux").is_present
    (tmp_path / "notify-send").unlink()
    found = Desktop({"PATH": str(tmp_path), "DISPLAY": ":0"}, system="linux")
    assert "install notify-send" in found.notify("a", "b")
