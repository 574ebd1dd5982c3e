"""A service of this machine: one of our programs that starts with it, and is started again when it falls.

Only nouns, and the rule by which one is made from what a person asked for. What a service manager reads is rendered
beside this file, shown, and only then acted on. A program that runs only beside this process is a `SupervisedChild`.
"""

from __future__ import annotations

import hashlib
import os
import plistlib
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from xml.parsers.expat import ExpatError

from stoker.core.clock import Clock
from stoker.core.device import VENDORS
from stoker.core.errors import BadInput
from stoker.core.frozen import fresh, frozen
from stoker.core.job import JOB_VARIABLES
from stoker.host.install import UV_SETTINGS

HOPELESS = (2, *range(20, 30), 33, 35, 78)
"""Exit codes that a restart can't mend: usage, configuration, not allowed, another version."""
ASKED_TO_END = (130, 143)
"""Exit codes of a program that was interrupted or terminated, which counts as success."""
WATCHDOG_S = 180
"""A program that has not said for so long that it lives is started again."""
BEFORE_WORDS = 4
"""Number of words before the user's: python, -m, stoker and the kind."""
RESTART_S = 5
LONGEST_RESTART_S = 300
_STOP_S = 90.0
# Beside the time that a job may take to save: for sending what it saved, and giving everything back.
_GIVE_BACK_S = 120.0
# By name, never by prefix: the unit file is world-readable, and must not contain a token or a password.
PASSED_ON = (
    "PATH",
    "LANG",
    "FLEET_HOST_ID",
    *(variable for vendor in VENDORS.values() for variable in vendor.variables),
    "STOKER_COMPANY_LINGER",
    "STOKER_CONTAIN",
    "STOKER_COOKBOOKS",
    "STOKER_ENVS",
    "STOKER_LEDGER",
    "STOKER_OFFLINE",
    "STOKER_RUNTIME",
    "STOKER_STRICT",
    "STOKER_VRAM_LIMIT",
    "XDG_CACHE_HOME",
    "HF_ENDPOINT",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN",
    "HF_HUB_DISABLE_SYMLINKS",
    "HF_HUB_OFFLINE",
    "HF_TOKEN_PATH",
    "HUGGINGFACE_HUB_CACHE",
    "TRANSFORMERS_OFFLINE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "ALL_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "PIP_CERT",
    "PIP_CONSTRAINT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_NO_INDEX",
    "PIP_PROXY",
    "PIP_TRUSTED_HOST",
    "UV_CACHE_DIR",
    "UV_PYTHON_INSTALL_DIR",
    *UV_SETTINGS,
)
"""Variables that a service gets as they are when it is installed: every setting that our programs read."""
_OF_BACKENDS = ("KUBECONFIG", "RAY_AUTH_TOKEN_PATH", "SLURM_CONF", "SSH_AUTH_SOCK")
"""Paths that the commands of backends read; a service that starts workers of pools gets them, too."""
NOT_PASSED_ON = {
    "STOKER_HOME": "written by itself",
    "STOKER_COORDINATOR": "`work --install` writes it as --join",
    "STOKER_OPERATOR_TOKEN": "a secret: --token-file",
    "STOKER_CLUSTER": "of commands that people type; `serve` takes --cluster",
    "STOKER_GPU_FAKE": "invented devices are for tests and demonstrations",
    "STOKER_SERVER_KEY": "a secret, of the commands that compare models",
    **dict.fromkeys(
        (
            *JOB_VARIABLES,
            "STOKER_ATTEMPT",
            "STOKER_CONTROL",
            "STOKER_DETERMINISTIC",
            "STOKER_JOB_OUT",
            "STOKER_MARK",
            "STOKER_METRICS",
            "STOKER_NOTIFY_",
            "STOKER_OUT",
            "STOKER_PARAMS",
            "STOKER_RESUME",
            "STOKER_RESUME_KEY",
            "STOKER_SCRATCH",
            "STOKER_TOKEN",
            "STOKER_VRAM_BYTES",
        ),
        "set by Stoker for the programs that it starts",
    ),
}
"""Variables of Stoker that no service gets, each with the reason."""
SECRETS = dict.fromkeys(
    ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"), "`hf auth login` writes a token file, which the service finds"
)
"""Variables that our programs read and that stand in no file of a service, with what does instead."""
PASSWORD = re.compile(r"(?:^|://)[^/\s]*:[^/\s]*@|://[^/\s]+@")


class ServiceKind(StrEnum):
    """Which of our programs."""

    SERVE = "serve"
    WORK = "work"
    LAUNCH = "launch"
    """`stoker launch watch`."""


_ABOUT = {ServiceKind.SERVE: "coordinator", ServiceKind.WORK: "worker", ServiceKind.LAUNCH: "launcher"}


@frozen
class SupervisedService:
    """One of our programs, to be kept going."""

    kind: ServiceKind
    label: str
    """Its name among services, without what a service manager adds: `stoker-work`."""
    about: str
    argv: tuple[str, ...]
    folder: str
    """Where it runs."""
    environment: Mapping[str, str] = fresh(factory=dict)
    stop_s: float = _STOP_S
    """How long it may take to end in order."""
    after: str = ""
    """The label of a service of the same machine that is started before it."""
    is_launching: bool = False
    """Starts workers of pools."""
    left_out: Mapping[str, str] = fresh(factory=dict)
    """Variables that are set and do not stand in its file because they hold a secret, each with what to do instead."""


def make_service(  # noqa: PLR0913 - what a service is made of
    kind: ServiceKind,
    words: Sequence[str],
    *,
    python: str,
    home: str,
    usual_home: str,
    environment: Mapping[str, str],
    called: str = "",
    grace_s: float = 0.0,
    after: str = "",
) -> SupervisedService:
    """Return the service of `stoker KIND WORDS…` for a home.

    `called` tells it from others of its kind in the same home. A home that is not the usual one gets labels of its own.
    Raises `BadInput` for what no service's file can say, or should not.
    """
    _refuse_secrets(words)
    argv = (python, "-m", "stoker", str(kind), *words)
    is_launching = kind is ServiceKind.LAUNCH or (kind is ServiceKind.SERVE and "--launch" in words)
    names = (*PASSED_ON, *(_OF_BACKENDS if is_launching else ()))
    passed = {name: environment[name] for name in names if environment.get(name)}
    secret = {name for name, value in passed.items() if PASSWORD.search(value)}
    left_out = dict.fromkeys(secret, "leave the password out, or put it into a drop-in that only you may read")
    left_out |= {
        name: instead for name, instead in SECRETS.items() if kind is ServiceKind.WORK and environment.get(name)
    }
    service = SupervisedService(
        kind=kind,
        label=service_label(kind, home, usual_home, called=called),
        about=f"Stoker's {_ABOUT[kind]} {called}".rstrip(),
        argv=argv,
        folder=home,
        environment={"STOKER_HOME": home, **{name: passed[name] for name in passed if name not in secret}},
        stop_s=_GIVE_BACK_S + grace_s if kind is ServiceKind.WORK else _STOP_S,
        after=after,
        is_launching=is_launching,
        left_out=left_out,
    )
    _refuse_odd(service)
    return service


def service_label(kind: ServiceKind, home: str, usual_home: str, *, called: str = "") -> str:
    """Name a service: of the usual home plainly, of another one with a mark of its path."""
    mark = "" if home == usual_home else f"-{hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}"
    return f"stoker-{kind}{mark}{f'-{called}' if called else ''}"


def _refuse_secrets(words: Sequence[str]) -> None:
    """Refuse a URL with a password: it would be visible in the list of services."""
    for word in words:
        place = word.partition("://")[2].partition("/")[0]
        user = place.rpartition("@")[0]
        if "://" in word and ":" in user:
            shown = word.replace(user, f"{user.partition(':')[0]}:…", 1)
            raise BadInput(
                f"{shown} has a password in it, and a service's file is no place for one",
                hint="leave it out of the address; PostgreSQL reads ~/.pgpass",
            )


def _refuse_odd(service: SupervisedService) -> None:
    """Refuse what the files of service managers have no way to write down."""
    texts = [*service.argv, service.folder, *service.environment.values()]
    for text in texts:
        if not text.isprintable() or any(0xD800 <= ord(char) <= 0xDFFF for char in text):
            raise BadInput(
                f"{text!a} has characters that a service file can't contain", hint="use a path of printable characters"
            )
    if not os.path.isabs(service.folder) or service.folder.endswith(("\\", " ")):
        raise BadInput(f"{service.folder!a} can't be the folder of a service", hint="set STOKER_HOME to another folder")


# A service as a systemd user unit: rendered, with everything quoted that systemd would read as its own.
#
# `%` begins a specifier everywhere; `\` and `"` end a quote; `$` is a variable in commands only, which the `:` before a
# command switches off. A path given to `WorkingDirectory=` is taken as it stands, so it is not quoted.

WRITTEN_BY = "# Written by stoker --install; stoker --uninstall removes it."
"""The first line: a unit file without it is not ours and is not changed."""

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
        *_ending(service),
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


def _ending(service: SupervisedService) -> list[str]:
    if service.kind is not ServiceKind.WORK and not service.is_launching:
        return ["KillMode=mixed"]
    # Asked to end, a worker gives back its jobs itself. Killed, its jobs live on, and the next one finds them again;
    # if none comes, they end with their leases. A job that runs out of memory is no reason to end the worker. Workers
    # of pools on this machine outlive the launcher that started them.
    return ["KillMode=process", "OOMPolicy=continue"]


def _command(argv: tuple[str, ...]) -> str:
    first, *rest = argv
    # Variables would also be replaced in argv[0], by which Python finds its environment.
    plain = ":" if any("$" in word for word in argv) else ""
    return " ".join([_quoted(f"{plain}{first}"), *map(_quoted, rest)])


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_specifiers(escaped)}"'


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _numbers(codes: tuple[int, ...]) -> str:
    return " ".join(map(str, codes))


# A service as a property list for launchd (macOS). Tested only as text.
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


# A child process beside this one: started again when it ends, and never left behind.
#
# Its standard input is its life line: the first line is a secret, which is then in no argument and no environment
# variable, and the child ends when the stream closes. The kernel closes it when this process ends, however that
# happens. Its output is handed on line by line.

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
"""Between an end and the next start; the pause doubles each time, and begins again after a child that lived longer."""
_END_S = 5.0
"""How long the child may take to end after its life line has closed."""
_LONGEST_LINE = 64 * 1024


class SupervisedChild:
    """Keeps one child process running until closed. Thread-safe."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        folder: str,
        environment: Mapping[str, str],
        secret: str,
        on_line: Callable[[str], None],
        clock: Clock,
    ) -> None:
        """`on_line` gets each line of the child, and a line about each of its ends, in another thread."""
        self._argv = tuple(argv)
        self._folder = folder
        self._environment = dict(environment)
        self._secret = secret
        self._on_line = on_line
        self._clock = clock
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="stoker-child", daemon=True)

    def start(self) -> None:
        """Start the child, and again whenever it ends."""
        self._thread.start()

    def close(self) -> None:
        """End the child. Blocks until it has ended."""
        self._is_closed.set()
        with self._lock:
            process = self._process
        if process is not None:
            _end(process)
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._is_closed.is_set():
            began_s = self._clock.monotonic_s()
            why = self._run_once()
            if self._is_closed.is_set():
                return
            if self._clock.monotonic_s() - began_s > _LONGEST_PAUSE_S:
                pause_s = _FIRST_PAUSE_S
            self._on_line(f"{why}; starts again in {pause_s:.0f} s")
            self._is_closed.wait(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    def _run_once(self) -> str:
        """Run the child to its end; return how it ended."""
        try:
            with self._lock:
                if self._is_closed.is_set():
                    return ""
                self._process = process = subprocess.Popen(
                    self._argv,
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    # A Ctrl-C at the terminal is for this process, which then closes the life line.
                    start_new_session=True,
                )
        except OSError as error:
            return f"can't be started: {error.strerror}"
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            message = "a child without its streams"
            raise RuntimeError(message)
        # A child that ended at once does not read it.
        with suppress(OSError):
            stdin.write(f"{self._secret}\n".encode())
            stdin.flush()
        while line := stdout.readline(_LONGEST_LINE):
            self._on_line(line.decode(errors="replace").rstrip())
        code = process.wait()
        with suppress(OSError):
            stdin.close()
        stdout.close()
        return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    for act in (process.terminate, process.kill):
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            act()
        else:
            return
    process.wait()
