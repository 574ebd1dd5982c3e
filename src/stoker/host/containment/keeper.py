"""A shell beside a box that waits for us: if we go without a word, even by kill -9, it ends whoever is in the box.

It waits on a pipe that nobody else holds. It costs a megabyte and no time, and lives as long as its box.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress

from stoker.host.containment.box import MARK
from stoker.host.identity import ProcessIdentity

_DISMISS_WAIT_S = 5.0
# It hears lines: a group's folder to empty and remove; a session (leader, its start) to kill; a mark, to kill whoever
# was started with it; `end` when all is well. A number that has gone to another process since has another start, and is
# left alone.
_SCRIPT = r"""
groups= sessions= marks=
while read -r what first second; do
  case $what in
    end) exit 0 ;;
    group) groups="$first $groups" ;;
    session) sessions="$sessions $first:$second" ;;
    mark) marks="$marks $first" ;;
  esac
done
end_group() {
  { echo 1 > "$1/cgroup.kill"; } 2> /dev/null && return
  while read -r pid; do kill -s KILL "$pid"; done < "$1/cgroup.procs"
}
start_of() {
  read -r row < "/proc/$1/stat" || return
  set -- ${row##*) }
  echo "${20}"
}
for session in $sessions; do
  pid=${session%:*}
  start=$(start_of "$pid")
  if [ -z "$start" ] || [ "$start" = "${session#*:}" ]; then kill -s KILL -- "-$pid"; fi
done
for mark in $marks; do
  rounds=100
  while found=$(grep -lsF "$mark" /proc/[0-9]*/environ); [ -n "$found" ] && [ "$rounds" -gt 0 ]; do
    for one in $found; do
      one=${one#/proc/}
      kill -s KILL "${one%/environ}"
    done
    rounds=$((rounds - 1))
    sleep 0.01
  done
done
rounds=100
while [ "$rounds" -gt 0 ] && [ -n "$groups" ]; do
  left=
  for group in $groups; do
    end_group "$group"
    rmdir "$group" || { [ -d "$group" ] && left="$left $group"; }
  done
  groups=$left rounds=$((rounds - 1))
  [ -z "$groups" ] || sleep 0.05
done
"""


class Keeper:
    """The shell that goes on when we do not."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin"},
            cwd="/",
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def guard_groups(self, folders: Sequence[str]) -> None:
        """Tell it which control groups to empty and remove. Those named last go first."""
        for folder in folders:
            self._say(f"group {folder}")

    def guard_session(self, identity: ProcessIdentity) -> None:
        """Tell it which process group to kill."""
        self._say(f"session {identity.pid} {identity.start_ticks}")

    def guard_mark(self, mark: str) -> None:
        """Tell it by which mark to find those who left their session."""
        if mark:
            self._say(f"mark {MARK}={mark}")

    def dismiss(self) -> None:
        """Tell it that all is well, and see it gone. Twice is fine."""
        self._say("end")
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_DISMISS_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        # Nobody listens if somebody killed it; then it guards nothing, and the next run sweeps.
        with suppress(OSError):
            pipe.write(line.encode() + b"\n")
            pipe.flush()
