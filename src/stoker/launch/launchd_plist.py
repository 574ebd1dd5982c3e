"""A service as a property list for launchd (macOS). Tested as text; nobody has loaded one yet.

launchd starts again whatever ends with a code other than 0. So a few lines of shell stand before the program: they pass
TERM on, wait, and end with 0 where a restart would mend nothing.
"""

from __future__ import annotations

import os
import plistlib
from xml.parsers.expat import ExpatError

from stoker.launch.services import ASKED_TO_END, BEFORE_WORDS, HOPELESS, RESTART_S, Service

_WAITING = """
child= asked=
trap 'asked=1; if [ -n "$child" ]; then kill -s TERM "$child" 2> /dev/null; fi' TERM INT HUP
"$@" &
child=$!
if [ -n "$asked" ]; then kill -s TERM "$child" 2> /dev/null; fi
while :; do
  wait "$child"
  code=$?
  kill -s 0 "$child" 2> /dev/null || break
done
case " SETTLED " in *" $code "*) exit 0 ;; esac
exit "$code"
""".replace("SETTLED", " ".join(map(str, (*HOPELESS, *ASKED_TO_END))))

_SHELL = ("/bin/sh", "-c", _WAITING, "stoker")


def render_plist(service: Service) -> str:
    """Give the text of the property list."""
    log = os.path.join(service.folder, "state", f"{service.label}.log")
    listed = {
        "Label": service.label,
        "ProgramArguments": [*_SHELL, *service.argv],
        "WorkingDirectory": service.folder,
        "EnvironmentVariables": dict(sorted(service.environment.items())),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": max(10, RESTART_S),
        "ExitTimeOut": int(service.stop_s),
        # What a worker that was killed leaves running is found again by the next one.
        "AbandonProcessGroup": True,
        "ProcessType": "Interactive",
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    return plistlib.dumps(listed, sort_keys=False).decode()


def plist_words(text: str) -> tuple[str, ...]:
    """Give the words of a property list that we wrote; of one that says them otherwise, none."""
    try:
        argv = plistlib.loads(text.encode())["ProgramArguments"]
    except (KeyError, TypeError, ValueError, plistlib.InvalidFileException, ExpatError):
        return ()
    return tuple(map(str, argv[len(_SHELL) + BEFORE_WORDS :])) if isinstance(argv, list) else ()
