r"""A service as a systemd user unit: rendered, with everything quoted that systemd would read as its own.

`%` begins a specifier everywhere; `\` and `"` end a quote; `$` is a variable in commands only, which the `:` before a
command switches off. A path given to `WorkingDirectory=` is taken as it stands, so it is not quoted.
"""

from __future__ import annotations

import os
import plistlib
import re
from xml.parsers.expat import ExpatError

from stoker.launch.service import (
    ASKED_TO_END,
    BEFORE_WORDS,
    HOPELESS,
    LONGEST_RESTART_S,
    RESTART_S,
    WATCHDOG_S,
    ServiceKind,
    SupervisedService,
)

WRITTEN_BY = "# Written by stoker --install; stoker --uninstall removes it."
"""Its first line: a unit without it is somebody else's, and stays as it is."""

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def unit_name(label: str) -> str:
    """Return the name of a service's unit."""
    return f"{label}.service"


def render_unit(service: SupervisedService) -> str:
    """Return the text of the unit."""
    lines = [WRITTEN_BY, "[Unit]", f"Description={_specifiers(service.about)}"]
    if service.after:
        lines += [f"Wants={unit_name(service.after)}", f"After={unit_name(service.after)}"]
    lines += [
        # It is tried again as long as it takes; the pauses grow.
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=notify",
        "NotifyAccess=main",
        f"ExecStart={_command(service.argv)}",
        *_reloading(service.kind),
        f"WorkingDirectory={_specifiers(service.folder)}",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in sorted(service.environment.items())),
        "Restart=on-failure",
        f"RestartSec={RESTART_S}",
        # Known from version 254 on; older ones say so once and pause equally long each time.
        "RestartSteps=8",
        f"RestartMaxDelaySec={LONGEST_RESTART_S}",
        f"RestartPreventExitStatus={_numbers(HOPELESS)}",
        f"SuccessExitStatus={_numbers(ASKED_TO_END)}",
        f"WatchdogSec={WATCHDOG_S}",
        f"TimeoutStopSec={service.stop_s:.0f}",
        *_ending(service.kind),
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def unit_words(text: str) -> tuple[str, ...]:
    """Return the words of a unit that we wrote; of one that says them otherwise, none."""
    command = next((line for line in text.splitlines() if line.startswith("ExecStart=")), "")
    argv = [re.sub(r"\\(.)", r"\1", one.replace("%%", "%")) for one in _QUOTED.findall(command)]
    return tuple(argv[BEFORE_WORDS:])


def _reloading(kind: ServiceKind) -> list[str]:
    """A coordinator reads its files again at SIGHUP; a worker ends."""
    return ["ExecReload=/bin/kill -HUP $MAINPID"] if kind is ServiceKind.SERVE else []


def _ending(kind: ServiceKind) -> list[str]:
    if kind is ServiceKind.SERVE:
        return ["KillMode=mixed"]
    # Asked to end, a worker gives back its jobs itself. Killed, its jobs live on, and the next one finds them again;
    # if none comes, they end with their leases. A job that runs out of memory is no reason to end the worker.
    return ["KillMode=process", "OOMPolicy=continue"]


def _command(argv: tuple[str, ...]) -> str:
    first, *rest = argv
    # Variables would also be replaced in the name that the program is told, by which Python finds its environment.
    plain = ":" if any("$" in word for word in argv) else ""
    return " ".join([_quoted(f"{plain}{first}"), *map(_quoted, rest)])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_specifiers(escaped)}"'


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _numbers(codes: tuple[int, ...]) -> str:
    return " ".join(map(str, codes))


# A service as a property list for launchd (macOS). Tested as text; nobody has loaded one yet.
#
# launchd starts again whatever ends with a code other than 0. So a few lines of shell stand before the program: they
# pass TERM on, wait, and end with 0 where a restart would mend nothing.

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


def render_plist(service: SupervisedService) -> str:
    """Return the text of the property list."""
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
    """Return the words of a property list that we wrote; of one that says them otherwise, none."""
    try:
        argv = plistlib.loads(text.encode())["ProgramArguments"]
    except (KeyError, TypeError, ValueError, plistlib.InvalidFileException, ExpatError):
        return ()
    return tuple(map(str, argv[len(_SHELL) + BEFORE_WORDS :])) if isinstance(argv, list) else ()
