"""Workers as processes of a host: this machine, or one that is reached by SSH.

The script that starts them, and those that look, cancel and clean up, are read by `sh` from its standard input: the
tickets in it are in no argument, and the far side needs no Stoker to answer. A worker has a folder of its own,
`BASE/FLEET/POOL-ID`, with its ticket, its log, the identity of the process that leads its session, and at its end its
exit status. It outlives the launcher and its connection.

An identity is what `host.identity` compares: number, start, boot, namespace of the number, and host. The scripts read
it by themselves, from `/proc`. So a recycled number is never signalled, and a reboot ends everything.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence

from stoker.core.errors import InternalError, LaunchDoubtful, LaunchRefused, NoBackend, StokerError
from stoker.core.pool import Allocation, AllocationCause, AllocationState, Pool, require_valid
from stoker.core.text import one_line
from stoker.devices.checkup import Check, CheckStatus
from stoker.host.command_runner import ProbeFailure
from stoker.launch.commands import HostCommands
from stoker.launch.kit import Kits, check_python, check_way_back, is_kit_used, read_versions
from stoker.launch.launchers import (
    FLEET_FOLDERS,
    AllocationStatus,
    Log,
    Rendered,
    fill,
    ticket_hole,
    with_lost,
    worker_command,
)

_SHELL = ("sh", "-s")
OWN_FOLDER = """\
own_folder() {
  [ -O . ] || { echo "$PWD belongs to another user" >&2; return 1; }
  me=$(id -u); private=; path=
  if [ "$(id -gn)" = "$(id -un)" ]; then
    case "$(getent group "$(id -g)" 2>/dev/null)" in *: | *":$(id -un)") private=$(id -g) ;; esac
  fi
  for folder in "$PWD" "$(pwd -P)"; do
    [ "$folder" != "$path" ] || continue
    path=$folder
    at=$folder
    while :; do
      set -- $(stat -c %u "$at") $(stat -L -c '%u %g %a' "$at")
      for owner in "$1" "$2"; do
        [ "$owner" = "$me" ] || [ "$owner" = 0 ] || { echo "$at belongs to another user ($owner)" >&2; return 1; }
      done
      bits=022
      if [ "$at" != "$folder" ]; then
        [ "$3" != "$private" ] || bits=002
        [ $((0$4 & 01000)) = 0 ] || bits=0
      fi
      [ $((0$4 & $bits)) = 0 ] || { echo "others may write in $at (mode $4)" >&2; return 1; }
      [ "$at" != / ] || break
      at=${at%/*}
      at=${at:-/}
    done
  done
}
"""
"""Shell: `own_folder` fails, with the reason, if another user may write in the current folder or replace it.

Who can could replace tickets, and name processes to end. The rule is that of kits: each folder above belongs to this
user or to root, and only they may write there, except for a user's private group and where the sticky bit is set.
Where a link leads to another folder, both paths count.
"""
_REMOTE_BASE = '"$HOME"/.local/state/stoker/workers'
_LOG_BYTES = 4096
_LOOKED = "stoker:look"
"""Printed by the script of `look`. An answer without it is not that script's."""
_NUMBER = re.compile(r"[0-9]{1,12}")
_NOT_MADE = 73
"""Exit status of the script: nothing was started."""
_STARTING_S = 60
_STARTS_WITHIN_S = 10
# By a worker's exit status: done, drained, ended by SIGTERM before it could do anything about it.
_CAUSES = {0: AllocationCause.FINISHED, 75: AllocationCause.FINISHED, 143: AllocationCause.CANCELLED_THERE}

# `identity PID` prints who has this number now; nothing if no process has it. `is_alive FOLDER` compares that with what
# the folder's worker wrote down. Field 22 of `stat` is the start; the name before may contain anything. The kernel does
# not reuse a number while it is that of a group: of a leader that was killed the rest is still its own.
_IDENTITY = """\
identity() {
  read -r stat 2>/dev/null < "/proc/$1/stat" || return 1
  set -- "$1" ${stat##*) }
  [ "$2" != Z ] && [ "$2" != X ] || return 1
  echo "$1 ${21} $boot $space $host"
}
read -r boot < /proc/sys/kernel/random/boot_id
space=$(readlink /proc/self/ns/pid)
host=$(uname -n)
"""
_FUNCTIONS = (
    _IDENTITY
    + """\
is_own() { [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ]; }
is_alive() {
  [ -f "$1/identity" ] || return 1
  read -r pid rest < "$1/identity"
  [ "$(identity "$pid")" = "$pid $rest" ] && return
  [ "${rest#* }" = "$boot $space $host" ] && [ ! -e "/proc/$pid" ] && kill -s 0 -- "-$pid" 2>/dev/null
}
"""
)

# The leader of a worker's session. It writes its identity before anything else and the worker's exit status last. A
# signal to the group ends its `wait` early, but not the worker.
_LEADER = """\
trap : TERM INT HUP
identity $$ > identity.new && date +%s > started && mv identity.new identity
worker() {
SETUP
exec COMMAND
}
worker &
child=$!
while :; do
  wait "$child"
  code=$?
  kill -0 "$child" 2>/dev/null || break
done
echo "$code $(date +%s)" > exit.new && mv exit.new exit
"""


class HostLauncher:
    """Starts workers as processes of this machine and of SSH hosts."""

    def __init__(self, commands: HostCommands, *, folder: str, python: str, kits: Kits | None = None) -> None:
        """`folder` is where workers of this machine have their folders; `python` the interpreter that has Stoker.

        Without `kits` each host has that interpreter, or the pool names one.
        """
        self._commands = commands
        self._kits = kits
        self._folder = folder
        self._python = python

    def prepare(self, pool: Pool, log: Log, *, is_dry: bool = False) -> Pool:
        return self._kits.prepare(pool, log, is_dry=is_dry) if self._kits is not None else pool

    def render(self, pool: Pool, allocations: Sequence[Allocation], *, fleet: str) -> Rendered:
        require_valid(pool)
        command = worker_command(pool, '"$PWD/ticket"', python=self._python)
        setup = "\n".join(pool.setup) or ":"
        leader = _IDENTITY + _LEADER.replace("COMMAND", command, 1).replace("SETUP", setup, 1)
        end = "END"
        while end in leader.splitlines():
            end += "_"
        lines = [
            # A shell parses a function as a whole: of a script that is cut off nothing runs.
            OWN_FOLDER + "main() {",
            "umask 077",
            f"base={self._base(pool)}/{shlex.quote(fleet)}",
            'mkdir -p "$base" && cd "$base" && own_folder || exit 73',
            "names=",
            "start() {",
            '  error=$(mkdir "$1" 2>&1) || { [ -d "$1" ] && return; echo "$error" >&2; exit 73; }',
            '  cat > "$1/ticket" || exit 73',
            f"  cat > \"$1/run\" <<'{end}' || exit 73",
            leader + end,
            '  names="$names $1"',
            '  (cd "$1" && exec setsid sh run > log 2>&1 < /dev/null) &',
            "}",
        ]
        for allocation in allocations:
            lines += [f"start {allocation.machine} <<'{end}'", ticket_hole(allocation), end]
        # Until a worker leads its session, it would end with this script.
        lines += [
            "n=0",
            "for one in $names; do",
            f'  until [ -f "$one/identity" ] || [ "$n" -gt {_STARTS_WITHIN_S * 50} ]; do sleep 0.02; n=$((n+1)); done',
            '  [ -f "$one/identity" ] || exit 75',
            "done",
            *("}", "main", ""),
        ]
        return Rendered(
            where=pool.via, argv=_SHELL, stdin="\n".join(lines), ids=tuple(allocation.id for allocation in allocations)
        )

    def submit(self, rendered: Rendered, tickets: Mapping[str, str]) -> Mapping[str, str]:
        one_line_each = {id: text.rstrip("\n") for id, text in tickets.items()}
        if any("\n" in text for text in one_line_each.values()):
            raise InternalError("a ticket has more than one line")
        reply = self._commands.run(rendered.where, rendered.argv, stdin=fill(rendered.stdin, one_line_each))
        if isinstance(reply, ProbeFailure):
            raise LaunchDoubtful(f"start of workers on {_host(rendered.where)}: {reply.why}", host=rendered.where)
        if reply.exit_code:
            text = one_line(reply.err or f"exit {reply.exit_code}", 300)
            # Of several some may have started.
            has_none = reply.exit_code == _NOT_MADE and len(rendered.ids) == 1
            raise (LaunchRefused if has_none else LaunchDoubtful)(
                f"{_host(rendered.where)} started no worker: {text}",
                hint="check disk and permissions there",
                host=rendered.where,
            )
        return {id: id for id in rendered.ids}

    def forecast(self, rendered: Rendered) -> str:
        return ""

    def look(self, pool: Pool, *, fleet: str, known: Sequence[Allocation] = ()) -> tuple[AllocationStatus, ...]:
        script = f"""\
echo {_LOOKED}
cd {self._base(pool)}/{shlex.quote(fleet)} 2>/dev/null || exit 0
for one in {pool.name}-*; do
  is_own "$one" || continue
  started=; exit=; state=starting
  [ -f "$one/started" ] && read -r started < "$one/started"
  if [ -f "$one/exit" ]; then
    state=exited; read -r exit < "$one/exit"
  elif is_alive "$one"; then
    state=running
  elif [ -f "$one/identity" ]; then
    state=gone
    read -r pid ticks its_boot its_space its_host < "$one/identity"
    [ "$its_host" = "$host" ] || state=elsewhere
    [ "$state $its_boot" = "gone $boot" ] || [ "$state" = elsewhere ] || state=rebooted
    # It may have written its exit since.
    [ -f "$one/exit" ] && {{ state=exited; read -r exit < "$one/exit"; }}
  elif [ $(( $(date +%s) - $(stat -c %Y "$one") )) -gt {_STARTING_S} ]; then
    state=never
  fi
  echo "$one $state ${{started:-0}} $exit"
done
"""
        reply = self._read(pool, script)
        if _LOOKED not in reply.splitlines():
            raise _ran_no_script(pool, reply)
        lines = [line.split() for line in reply.splitlines() if line.startswith(f"{pool.name}-")]
        found = [status for words in lines if (status := _status(words, pool)) is not None]
        return with_lost(found, known, "its folder is gone")

    def cancel(self, pool: Pool, backend_ids: Sequence[str], *, is_gentle: bool = False) -> None:
        # TERM to the session's group, KILL once its time is over; what does that outlives the script and ends with the
        # worker.
        watch = "; ".join(
            [
                f"n={math.ceil(pool.end_margin_s)}",
                'while [ "$n" -gt 0 ] && is_alive "$1"; do sleep 1; n=$((n-1)); done',
                'is_alive "$1" && kill -s KILL -- "-$pid"',
            ]
        )
        script = f"""\
cd {self._base(pool)} 2>/dev/null || exit 0
for one in {" ".join(f"*/{pool.name}-{_word(id)}" for id in backend_ids)}; do
  is_own "$one" && is_alive "$one" || continue
  kill -s TERM -- "-$pid"; kill -s CONT -- "-$pid"
  setsid sh -c {shlex.quote(_FUNCTIONS + watch)} sh "$one" < /dev/null > /dev/null 2>&1 &
  # Until it leads its session, it would end with this script.
  while read -r stat 2>/dev/null < "/proc/$!/stat"; do
    set -- ${{stat##*) }}
    [ "$4" = "$!" ] && break
  done
done
"""
        self._read(pool, script)

    def log(self, pool: Pool, allocation: Allocation) -> str:
        return self._read(
            pool, f"tail -q -c {_LOG_BYTES} {self._base(pool)}/*/{_word(allocation.machine)}/log 2>/dev/null\n"
        )

    def clean(self, pool: Pool, allocations: Sequence[Allocation]) -> None:
        names = " ".join(f"*/{_word(allocation.machine)}" for allocation in allocations)
        self._read(
            pool,
            f"""\
cd {self._base(pool)} 2>/dev/null || exit 0
for one in {names}; do
  is_own "$one" && ! is_alive "$one" && rm -rf "$one"
done
rmdir {FLEET_FOLDERS} 2>/dev/null
""",
        )

    def check(self, pool: Pool, *, url: str = "") -> tuple[Check, ...]:
        require_valid(pool)
        python = pool.python or self._python
        script = f"""\
echo "system $(uname -srm)"
[ -n "$boot" ] && command -v setsid > /dev/null && echo "setsid yes"
umask 077
mkdir -p {self._base(pool)}/.check$$ && cd {self._base(pool)}/.check$$ && {{
  error=$(own_folder 2>&1) && echo "free $(df -Pk . | awk 'NR == 2 {{ print $4 }}')" || echo "error $error"
  rmdir ../.check$$
}}
"""
        try:
            reply = self._read(pool, script, functions=OWN_FOLDER)
            said = dict(line.partition(" ")[::2] for line in reply.splitlines() if " " in line)
            if "system" not in said:
                raise _ran_no_script(pool, reply)
            if self._kits is not None and is_kit_used(pool):
                pythons = self._kits.check(pool, url)
            else:
                found = check_python(read_versions(self._commands, pool, python), pool, python)
                # Without an interpreter there is nothing to connect with.
                is_there = found.verdict is CheckStatus.OK
                way_back = check_way_back(self._commands, pool, python, url) if is_there else ()
                pythons = (found, *way_back)
        except StokerError as error:
            return (Check("reached", CheckStatus.BAD, error.message, error.hint),)
        return (
            Check("reached", CheckStatus.OK, f"{_host(pool.via)}: {said.get('system', '')}"),
            *self._commands.check_host_key(pool.via),
            _check_setsid(said),
            *pythons,
            _check_folder(said),
        )

    def _base(self, pool: Pool) -> str:
        """Return the folder of all workers' folders, as a shell reads it."""
        if pool.folder:
            return shlex.quote(f"{pool.folder}/workers")
        return _REMOTE_BASE if pool.via else shlex.quote(self._folder)

    def _read(self, pool: Pool, script: str, *, functions: str = "") -> str:
        return self._commands.read(pool.via, _SHELL, stdin=f"{_FUNCTIONS}{functions}main() {{\n{script}}}\nmain\n").out


def _ran_no_script(pool: Pool, reply: str) -> NoBackend:
    what = f"{_host(pool.via)} ran no script: {one_line(reply, 200)!r}"
    hint = f"ssh {shlex.quote(pool.via)} echo hello: does it run commands?" if pool.via else ""
    return NoBackend(what, hint=hint, host=pool.via)


def _check_setsid(said: Mapping[str, str]) -> Check:
    if said.get("setsid") != "yes":
        return Check("backend", CheckStatus.BAD, "no /proc or no setsid", "workers need Linux with util-linux")
    return Check("backend", CheckStatus.OK, "processes in sessions of their own")


def _check_folder(said: Mapping[str, str]) -> Check:
    if error := said.get("error"):
        return Check("folder", CheckStatus.BAD, one_line(error, 200), "chmod it if it is yours, or set folder")
    if not _NUMBER.fullmatch(said.get("free", "")):
        return Check("folder", CheckStatus.BAD, "the folder of workers can't be made", "set folder to another path")
    mib = int(said["free"]) // 1024
    verdict = CheckStatus.OK if mib >= 1024 else CheckStatus.WARN
    return Check("folder", verdict, f"{mib} MiB free", "" if mib >= 1024 else "free some disk space there")


def _status(words: Sequence[str], pool: Pool) -> AllocationStatus | None:
    """Read one line of the script of `look`: name, state, start, and exit status and its time if there is one."""
    if len(words) < 3 or not all(_NUMBER.fullmatch(word) for word in words[2:]):
        return None
    name, state, started, *exit_words = words
    id = name.removeprefix(f"{pool.name}-")
    if not (id.isascii() and id.isalnum()):
        # Of a pool whose name begins with this one's, or nothing that we made.
        return None
    match state:
        case "starting":
            return AllocationStatus(id=id, backend_id=id, state=AllocationState.WAITING, reason=state)
        case "running" | "elsewhere":
            ends_s = float(started) + pool.wall_s if float(started) else None
            reason = "" if state == "running" else "runs on another host of this folder"
            return AllocationStatus(id=id, backend_id=id, state=AllocationState.STARTED, reason=reason, ends_s=ends_s)
        case "exited" if len(exit_words) == 2:
            code = int(exit_words[0])
            cause, reason = _CAUSES.get(code, AllocationCause.FAILED), f"exit {code}"
        case "rebooted":
            cause, reason = AllocationCause.PREEMPTED, "the host was started again"
        case "never":
            cause, reason = AllocationCause.NOT_SUBMITTED, "its process never started"
        case _:
            cause, reason = AllocationCause.FAILED, "its process is gone without an exit status"
    return AllocationStatus(id=id, backend_id=id, state=AllocationState.ENDED, reason=reason, cause=cause)


def _word(text: str) -> str:
    """Return a name or an id that is one word of a shell. Raises `InternalError` on any other."""
    if not text or not text.replace("-", "").replace("_", "").isalnum() or not text.isascii():
        raise InternalError(f"not a name of an allocation: {text[:80]!r}")
    return text


def _host(where: str) -> str:
    return where or "this machine"
