"""`--install` and `--uninstall`: a service of this machine, shown before it is made.

What would be written is printed first; on a terminal somebody is asked, elsewhere `--yes` says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Option
from stoker.core.errors import Usage

if TYPE_CHECKING:
    from stoker.launch.installer import InstalledService
    from stoker.launch.service import SupervisedService

INSTALL = Option("--install", help="as a service that starts with this machine; what is written is shown first")
UNINSTALL = Option("--uninstall", help="stop that service and remove it")
YES = Option("--yes", help="with --install: do not ask")


def refuse_both(given: dict[str, Any]) -> None:
    """Refuse words that contradict each other, or mean nothing."""
    if given["install"] and given.get("uninstall"):
        raise Usage("--install and --uninstall contradict each other")
    if given["yes"] and not given["install"]:
        raise Usage("--yes answers the question of --install", hint="add --install, or leave it out")


def check_services(call: CommandContext, services: Sequence[SupervisedService], *, yes: bool) -> None:
    """Refuse now what could not be installed later."""
    for service in services:
        call.parts.installer().check(service)
    if not yes and not call.out.is_terminal:
        raise Usage("nobody is here to confirm the service", hint="--yes confirms it")


def install_services(
    call: CommandContext, services: Sequence[SupervisedService], *, yes: bool
) -> tuple[InstalledService, ...]:
    """Show, ask, install and see them run; nothing if somebody said no."""
    out, installer = call.out, call.parts.installer()
    check_services(call, services, yes=yes)
    for service in services:
        rendered = installer.check(service)
        out.object({"service": service.label, "path": rendered.path, "text": rendered.text})
        out.line(f"{rendered.path}:")
        for line in rendered.text.splitlines():
            out.line(f"  {line}" if line else "")
    for name, instead in {name: one for service in services for name, one in service.left_out.items()}.items():
        out.note(f"{name} holds a secret and is not written into the file: {instead}")
    if not yes and not out.asks("Write this and start it?", by_default=True):
        out.note("nothing was written")
        return ()
    done = []
    for service in services:
        installed = installer.install(service)
        done.append(installed)
        out.object(
            {"service": installed.label, "installed": True, "path": installed.path, "pid": installed.seen.pid,
             "was_there": installed.was_there}
        )  # fmt: skip
        out.line(f"service {installed.label} {'was there, and runs' if installed.was_there else 'runs'}")
    return tuple(done)


def uninstall_services(call: CommandContext, labels: Sequence[str]) -> int:
    """Stop and remove them; 1 if none was there."""
    removed = [label for label in labels if call.parts.installer().uninstall(label)]
    for label in removed:
        call.out.object({"service": label, "installed": False})
        call.out.line(f"service {label} stopped and removed")
    if not removed:
        call.out.object({"service": labels[0], "installed": False, "was_there": False})
        call.out.line(f"there was no service {labels[0]}")
    return 0 if removed else 1


def boot_line(call: CommandContext) -> str:
    """Return whether services survive a reboot, and what to type if they do not yet."""
    trouble = call.parts.boot_trouble()
    return "survives reboot" if not trouble else f"starts when you log in; to start with the machine: {trouble}"
