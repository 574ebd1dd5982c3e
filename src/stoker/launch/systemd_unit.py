r"""A service as a systemd user unit: rendered, with everything quoted that systemd would read as its own.

`%` begins a specifier everywhere; `\` and `"` end a quote; `$` is a variable in commands only, which the `:` before a
command switches off. A path given to `WorkingDirectory=` is taken as it stands, so it is not quoted.
"""

from __future__ import annotations

import re

from stoker.launch.services import (
    ASKED_TO_END,
    BEFORE_WORDS,
    HOPELESS,
    LONGEST_RESTART_S,
    RESTART_S,
    WATCHDOG_S,
    Kind,
    Service,
)

WRITTEN_BY = "# Written by stoker --install; stoker --uninstall removes it."
"""Its first line: a unit without it is somebody else's, and stays as it is."""

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')


def unit_name(label: str) -> str:
    """Give the name of a service's unit."""
    return f"{label}.service"


def render_unit(service: Service) -> str:
    """Give the text of the unit."""
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
    """Give the words of a unit that we wrote; of one that says them otherwise, none."""
    command = next((line for line in text.splitlines() if line.startswith("ExecStart=")), "")
    argv = [re.sub(r"\\(.)", r"\1", one.replace("%%", "%")) for one in _QUOTED.findall(command)]
    return tuple(argv[BEFORE_WORDS:])


def _reloading(kind: Kind) -> list[str]:
    """A coordinator reads its files again at SIGHUP; a worker ends."""
    return ["ExecReload=/bin/kill -HUP $MAINPID"] if kind is Kind.SERVE else []


def _ending(kind: Kind) -> list[str]:
    if kind is Kind.SERVE:
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
