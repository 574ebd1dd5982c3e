"""A service as a scheduled job of Windows, in its XML. Tested as text; nobody has registered one yet.

The scheduler knows no environment, so a line of Python sets it before the program begins. It replaces `%NAME%` and
`$(NAME)` in what it starts and knows no way to write them plainly: paths with them are refused.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from xml.etree import ElementTree as ET

from stoker.core.errors import BadInput
from stoker.launch.service import BEFORE_WORDS, SupervisedService

_SPACE = "http://schemas.microsoft.com/windows/2004/02/mit/task"
_RESTARTS = 255
_PIECES = re.compile(r'(\\*)(")|([ \t]+)|(\\+|[^\\ \t"]+)')


def render_schedule(service: SupervisedService) -> str:
    """Return the text of the XML. Raises `BadInput` for a path that the scheduler would read as its own."""
    python, _, _, *words = service.argv
    command = [python, "-c", _beginning(service.environment), *words]
    arguments = subprocess.list2cmdline(command[1:])
    for text in (python, arguments, service.folder):
        if "%" in text or "$(" in text:
            raise BadInput(f"{text!a} can't stand in a scheduled job: Windows replaces % and $( in it")
    root = ET.Element("Task", {"version": "1.2", "xmlns": _SPACE})
    _put(root, "RegistrationInfo", {"Description": service.about, "URI": f"\\Stoker\\{service.label}"})
    _put(root, "Triggers", {"LogonTrigger": {"Enabled": "true"}})
    _put(root, "Principals", {"Principal": {"LogonType": "InteractiveToken", "RunLevel": "LeastPrivilege"}})
    settings = {
        "MultipleInstancesPolicy": "IgnoreNew",
        "DisallowStartIfOnBatteries": "false",
        "StopIfGoingOnBatteries": "false",
        "StartWhenAvailable": "true",
        "ExecutionTimeLimit": "PT0S",
        "RestartOnFailure": {"Interval": "PT1M", "Count": str(_RESTARTS)},
    }
    _put(root, "Settings", settings)
    action = {"Command": python, "Arguments": arguments, "WorkingDirectory": service.folder}
    _put(root, "Actions", {"Exec": action})
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-16"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def schedule_words(text: str) -> tuple[str, ...]:
    """Return the words of an XML that we wrote; of one that says them otherwise, none."""
    try:
        root = ET.fromstring(text.partition("?>")[2])  # noqa: S314 - written by us, for this user
    except ET.ParseError:
        return ()
    arguments = root.findtext(f".//{{{_SPACE}}}Arguments") or ""
    return tuple(_split(arguments)[BEFORE_WORDS - 1 :])


def _split(line: str) -> list[str]:
    """Undo what `subprocess.list2cmdline` did: backslashes count only before a quote, and quotes keep spaces."""
    words: list[str] = []
    word: str | None = None
    is_quoted = False
    for backslashes, quote, space, plain in _PIECES.findall(line):
        if space and not is_quoted:
            words += [] if word is None else [word]
            word = None
            continue
        word = (word or "") + (space or plain)
        if quote:
            word += "\\" * (len(backslashes) // 2)
            is_literal = len(backslashes) % 2 == 1
            word += '"' if is_literal else ""
            is_quoted = is_quoted is is_literal
    return words if word is None else [*words, word]


def _beginning(environment: Mapping[str, str]) -> str:
    # The first of its arguments is `-c`; a program is told its own name there.
    return (
        f"import os, runpy, sys; os.environ.update({dict(sorted(environment.items()))!a}); "
        "sys.argv[0] = 'stoker'; runpy.run_module('stoker', run_name='__main__', alter_sys=True)"
    )


def _put(parent: ET.Element, name: str, value: object) -> None:
    child = ET.SubElement(parent, name)
    if isinstance(value, Mapping):
        for inner, text in value.items():
            _put(child, inner, text)
    else:
        child.text = str(value)
