"""A shell on a terminal of its own, in which a test types and presses Tab."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 60.0
TAB = "\t"
_LINE = "\x18\x10"
"""Ctrl-X Ctrl-P: print the line that is being edited."""
_CLEAR = "\x15"

_COMMANDS = {
    "bash": ("bash", "--noprofile", "--norc", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}
_SETUP = {
    "bash": "bind 'set enable-bracketed-paste off'; bind 'set bell-style none'; bind 'set show-all-if-ambiguous on'; "
    """bind -x '"\\C-x\\C-p": printf "\\036%s\\036" "$READLINE_LINE"'; PS1='% '; """
    """source <(stoker completion bash)""",
    "zsh": "PS1='% '; autoload -Uz compinit; compinit -D; "
    """show() { printf '\\036%s\\036' "$BUFFER" }; zle -N show; bindkey -e; bindkey '^X^P' show; """
    "unset zle_bracketed_paste; source <(stoker completion zsh)",
    "fish": """function show; printf '\\036%s\\036' (commandline); end; bind \\cx\\cp show; """
    "function fish_prompt; echo '% '; end; stoker completion fish | source",
}
_ON_ITS_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Prompt:
    """An interactive shell that has read the completion script of `stoker`."""

    def __init__(self, shell: str, folder: Path, env: dict[str, str]) -> None:
        self.shell = shell
        self.folder = folder
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_ITS_TERMINAL, *_COMMANDS[shell]],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={**env, "TERM": "xterm", "LANG": "C.UTF-8", "HISTFILE": ""},
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""
        self.run(_SETUP[shell])

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._master)

    def run(self, command: str) -> str:
        """Run a command; return what the terminal showed until it had ended."""
        begin = len(self.seen)
        # The mark is printed in another spelling than it is typed.
        self.type(f"{command}; printf '\\035%s\\035' ended\r")
        self._wait_for("\x1dended\x1d", begin)
        return self.seen[begin:]

    def complete(self, text: str) -> str:
        """Type a text, press Tab, and return the line as it is then. The line is deleted afterwards."""
        begin = len(self.seen)
        self.type(text + TAB)
        self.type(_LINE)
        self._wait_for("\x1e", begin, count=2)
        found = self.seen[begin:].split("\x1e")[1]
        self.type(_CLEAR)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", found)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _wait_for(self, mark: str, begin: int, count: int = 1) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while self.seen.count(mark, begin) < count:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._master], [], [], left_s)[0]:
                raise TimeoutError(self.seen[begin:])
            self.seen += os.read(self._master, 65536).decode(errors="replace")
