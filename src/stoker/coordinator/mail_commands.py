"""Commands that send a notification by mail: kept in a private file of the coordinator's own folder.

The database holds only their names, so that who can write to it can't run a program on the coordinator's machine.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from stoker.core.errors import LocalFile
from stoker.core.jsontext import dumps, loads
from stoker.core.text import first_line, one_line, safe_name
from stoker.host.command_runner import CommandRunner, ProbeFailure
from stoker.host.durable import read_regular, write_file

MAIL = "mail:"
"""How the address of such a webhook begins."""
_MOST_BYTES = 1 << 20
_LIMIT_S = 30.0


class MailCommands:
    """The mail commands of a coordinator."""

    def __init__(self, path: str, runner: CommandRunner) -> None:
        self._path = path
        self._runner = runner

    def add(self, argv: Sequence[str]) -> str:
        """Store a command, and return the address by which a webhook names it."""
        known = self._known()
        digest = hashlib.sha256("\0".join(argv).encode(errors="surrogateescape")).hexdigest()[:12]
        name = f"{safe_name(os.path.basename(argv[0]))[:40]}/{digest}"
        known[name] = list(argv)
        write_file(self._path, dumps({"v": 1, "commands": known}).encode(), mode=0o600)
        return f"{MAIL}{name}"

    def send(self, address: str, message: str) -> str:
        """Run the command of an address with a message as its input; return the error, or an empty text."""
        argv = self._known().get(address.removeprefix(MAIL))
        if not argv:
            return "its mail command is not known on this machine: add it again"
        reply = self._runner.ask(argv, limit_s=_LIMIT_S, stdin=message)
        if isinstance(reply, ProbeFailure):
            return one_line(reply.why, 300)
        said = one_line(reply.err or reply.out, 200)
        return f"exit code {reply.exit_code}{f': {said}' if said else ''}" if reply.exit_code else ""

    def _known(self) -> dict[str, list[str]]:
        try:
            raw = loads(read_regular(self._path, _MOST_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise LocalFile(f"{self._path} can't be read: {first_line(error)}") from None
        found = raw.get("commands") if isinstance(raw, dict) else None
        return {
            str(name): [str(word) for word in argv]
            for name, argv in (found.items() if isinstance(found, dict) else ())
            if isinstance(argv, list) and argv
        }
