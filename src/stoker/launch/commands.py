"""Commands of a backend, here or on another host by the system's OpenSSH.

Of OpenSSH the user's configuration counts: names, keys, agents, jump hosts. One connection per host is kept open for a
minute, so that the next command takes milliseconds. Unknown host keys are accepted once and then remembered, unless the
user's configuration accepts known ones only; a changed one is refused with both fingerprints. What a command
reads is its standard input, never its arguments.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from stoker.core.errors import HostKeyChanged, NoBackend
from stoker.core.text import one_line
from stoker.devices.checkup import Check, CheckStatus
from stoker.host.command_runner import CommandRunner, ProbeFailure, ProbeOutput, Reply
from stoker.host.sockets import own_folder
from stoker.launch.service import PASSED_ON, PASSWORD

LIMIT_S = 30.0
CONNECT_S = 5
LOST = "connection_lost"
"""Code of a failure: the command may have run."""
_KEPT_S = 60
_MISSING = 127
_SSH_FAILED = 255
# What ssh prints if it never got as far as the command.
_NOT_REACHED = re.compile(
    r"Could not resolve hostname|Connection refused|No route to host|Network is unreachable|Host is down"
    r"|Permission denied \(|Host key verification failed|connect to host|kex_exchange_identification"
    r"|Bad owner or permissions|banner exchange|Too many authentication failures|Bad configuration option",
)
_CHANGED = "REMOTE HOST IDENTIFICATION HAS CHANGED"
_SENT = re.compile(r"SHA256:[A-Za-z0-9+/=]+")
_KNOWN_KEY = re.compile(r"\S+ SHA256:[A-Za-z0-9+/=]+")
_OFFENDING = re.compile(r"Offending \S+ key in (.+):(\d+)")
# Slurm keeps all variables with a job, and a worker inherits them: only what the backends' commands and our programs
# read, by name or prefix. Anything else may hold a secret.
_PUBLIC = frozenset(
    {
        *(name for name in PASSED_ON if not name.startswith("STOKER")),
        *("HOME", "USER", "LOGNAME", "SHELL", "PWD", "TZ", "TERM", "LANGUAGE", "TMPDIR", "MANPATH"),
        *("LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "OMP_NUM_THREADS"),
        *("SSH_AUTH_SOCK", "KRB5CCNAME", "KUBECONFIG"),
        # `module` in batch scripts: a function of the shell, or a file that the shell reads first.
        *("BASH_ENV", "ENV", "LOADEDMODULES", "_LMFILES_"),
    }
)
_PUBLIC_PREFIXES = (
    *("LC_", "XDG_", "SLURM_"),
    *("MODULE", "LMOD_", "__LMOD", "_ModuleTable", "BASH_FUNC_module", "BASH_FUNC_ml", "BASH_FUNC__module"),
)
_SLURM_PROGRAMS = frozenset({"sbatch", "squeue", "scancel", "sacct", "scontrol", "sinfo"})
# In POSIX sh: SLURM_CONF says which cluster it is, and SLURM_JWT who asks.
_UNSET = (
    "unset SBATCH_TIMELIMIT $(env | sed -nE '/^SLURM_(CONF|CONF_SERVER|JWT)=/d;"
    r" s/^((SBATCH|SQUEUE|SCANCEL|SACCT|SINFO|SRUN|SLURM)_[A-Za-z0-9_]*)=.*/\1/p')"
)
WITHOUT_OPTIONS = ("sh", "-c", f'{_UNSET}; exec "$@"', "sh")
"""Runs a command of Slurm without options from variables.

They win over a script's: `SBATCH_TIMELIMIT` over `#SBATCH --time`; `SQUEUE_PARTITION` hides jobs. What the launcher and
the cluster file set would not count.
"""
_PRIVATE = re.compile(r"TOKEN$|SECRET|PASSW|CREDENTIAL|_KEY$|APIKEY|JWT", re.IGNORECASE)


def public_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a backend may see, without those whose value is a URL with a password."""
    return {
        name: value
        for name, value in environment.items()
        if (name in _PUBLIC or name.startswith(_PUBLIC_PREFIXES))
        and not _PRIVATE.search(name)
        and not PASSWORD.search(value)
    }


class HostCommands:
    """Runs commands here and on hosts. Thread-safe."""

    def __init__(self, runner: CommandRunner, *, control_folder: str, ssh: Sequence[str] = ("ssh",)) -> None:
        """`control_folder` holds the sockets of connections; only this user may write there. A short path."""
        self._runner = runner
        self._control_folder = control_folder
        self._ssh = tuple(ssh)
        self._hosts: set[str] = set()
        self._host_key_rules: dict[str, str] = {}

    def close(self) -> None:
        """Close the connections that are kept open."""
        while self._hosts:
            host = self._hosts.pop()
            self._runner.ask([*self._ssh_words(host), "-O", "exit", "--", host])

    def run(
        self, where: str, argv: Sequence[str], *, stdin: str = "", stdin_path: str = "", limit_s: float = LIMIT_S
    ) -> Reply:
        """Run a command on a host, or here if `where` is empty. `stdin_path` is a file that it reads. Blocks.

        Raises `NoBackend` if it certainly did not run, `HostKeyChanged` if the host has another key.
        """
        program = next(word for word in argv if word != "env" and "=" not in word)
        words = [*WITHOUT_OPTIONS, *argv] if program in _SLURM_PROGRAMS else argv
        if where:
            self._hosts.add(where)
            words = [*self._ssh_words(where), "--", where, shlex.join(words)]
        if stdin_path:
            words = ["sh", "-c", 'exec "$@" < "$0"', stdin_path, *words]
        reply = self._runner.ask(words, limit_s=limit_s, stdin=stdin)
        if isinstance(reply, ProbeFailure):
            if reply.code in ("probe_missing", "probe_not_started"):
                raise NoBackend(f"{program if not where else 'ssh'} not found", hint=_path_hint(where), host=where)
            return reply
        if reply.exit_code == _MISSING:
            message = f"{program} not found on {where or 'this machine'}: {one_line(reply.err, 200)}"
            raise NoBackend(message, hint=_path_hint(where), host=where)
        if where and reply.exit_code == _SSH_FAILED:
            return self._on_ssh_failure(where, reply)
        return reply

    def read(self, where: str, argv: Sequence[str], *, stdin: str = "", limit_s: float = LIMIT_S) -> ProbeOutput:
        """Run a command that changes nothing. Raises `NoBackend` also if its output was lost."""
        reply = self.run(where, argv, stdin=stdin, limit_s=limit_s)
        if isinstance(reply, ProbeFailure):
            raise NoBackend(f"{argv[0]} on {where or 'this machine'}: {reply.why}", host=where)
        return reply

    def check_host_key(self, where: str) -> tuple[Check, ...]:
        """Return the check of the keys that are known of a host that was reached; nothing for this machine."""
        if not where:
            return ()
        said = self._configuration(where)
        name = said.get("hostkeyalias") or said.get("hostname", where)
        if said.get("port", "22") != "22" and "hostkeyalias" not in said:
            name = f"[{name}]:{said['port']}"
        keys: list[str] = []
        for file in said.get("userknownhostsfile", "").split():
            reply = self._runner.ask(["ssh-keygen", "-l", "-F", name, "-f", os.path.expanduser(file)])
            keys += _KNOWN_KEY.findall(reply.out)
        shown = ", ".join(dict.fromkeys(keys)) or "known by another way of your configuration"
        return (Check("host key", CheckStatus.OK, f"{where}: {shown}"),)

    def _host_key_rule(self, where: str) -> str:
        """Return `yes` if the user's configuration accepts known host keys only, else `accept-new`."""
        if where not in self._host_key_rules:
            said = self._configuration(where)
            if not said:
                # Unknown for now: the next command asks again.
                return "yes"
            is_strict = said.get("stricthostkeychecking") in ("yes", "true")
            self._host_key_rules[where] = "yes" if is_strict else "accept-new"
        return self._host_key_rules[where]

    def _configuration(self, where: str) -> dict[str, str]:
        """Return the user's configuration for a host, as ssh prints it; empty if it prints none."""
        reply = self._runner.ask([*self._ssh, "-G", "--", where])
        if isinstance(reply, ProbeFailure) or reply.exit_code:
            return {}
        return {name: value for name, _, value in (line.partition(" ") for line in reply.out.splitlines())}

    def _ssh_words(self, where: str) -> tuple[str, ...]:
        with own_folder(self._control_folder):
            # Who can write there could take over connections.
            pass
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": CONNECT_S,
            "StrictHostKeyChecking": self._host_key_rule(where),
            "ServerAliveInterval": 5,
            "ServerAliveCountMax": 3,
            "ControlMaster": "auto",
            "ControlPath": f"{self._control_folder}/%C",
            "ControlPersist": f"{_KEPT_S}s",
        }
        return (*self._ssh, *(word for name, value in options.items() for word in ("-o", f"{name}={value}")))

    def _on_ssh_failure(self, where: str, reply: ProbeOutput) -> Reply:
        if _CHANGED in reply.err:
            raise self._key_changed(where, reply.err)
        if not _NOT_REACHED.search(reply.err):
            why = f"connection to {where} lost: {one_line(reply.err, 200)}"
            return ProbeFailure(why=why, code=LOST, out=reply.out, seconds=reply.seconds)
        lines = [line for line in reply.err.splitlines() if _NOT_REACHED.search(line)]
        text = one_line(lines[-1], 200)
        raise NoBackend(f"{where} not reachable: {text}", hint=f"ssh {shlex.quote(where)}", host=where)

    def _key_changed(self, where: str, text: str) -> HostKeyChanged:
        sent = _SENT.search(text)
        new = sent[0] if sent else "unknown"
        offending = _OFFENDING.search(text)
        file, line = (offending[1].strip(), int(offending[2])) if offending else ("~/.ssh/known_hosts", 0)
        old = self._fingerprint(file, line)
        name = where.rpartition("@")[2]
        return HostKeyChanged(
            f"{where} has another host key: {new}, known is {old} ({file}:{line})",
            hint=f"if the host was installed anew: ssh-keygen -f {shlex.quote(file)} -R {shlex.quote(name)}",
            host=where,
            fingerprint=new,
            known_fingerprint=old,
            file=file,
        )

    def _fingerprint(self, file: str, line: int) -> str:
        """Return the fingerprint of a line of `known_hosts`."""
        try:
            with open(os.path.expanduser(file), encoding="utf-8", errors="replace") as known:
                text = known.read().splitlines()[line - 1]
        except (OSError, IndexError):
            return "unknown"
        reply = self._runner.ask(["ssh-keygen", "-l", "-f", "-"], stdin=text + "\n")
        found = _SENT.search(reply.out)
        return found[0] if found else "unknown"


def _path_hint(where: str) -> str:
    return f"is it on the PATH there? ssh {shlex.quote(where)} 'echo $PATH'" if where else "is it on the PATH?"
