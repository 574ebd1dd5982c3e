"""The programs that fetch a file, how each is called, and what it left behind."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import harness
import peers

FILE = "model.bin"
REPOSITORY = "org/repo"
COMMIT = "c" * 40
TARGET = f"/{REPOSITORY}/resolve/main/{FILE}"
LONGEST_S = 45.0
"""A program that has not ended by then hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be fetched: where from, where to, and the digest for those who can be told one."""

    origin: str
    folder: Path
    sha256: str
    token: str = ""

    @property
    def url(self) -> str:
        return self.origin + TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetcher:
    """One program, by the words that it is called with."""

    name: str
    words: Callable[[Order], list[str | Path]]
    environment: Callable[[Order], Mapping[str, str]] = field(default=lambda _: {})
    leaf: str = FILE
    """Where the file lands, below the folder that it is told."""

    def path(self, order: Order) -> Path:
        return order.folder / self.leaf

    def start(self, order: Order) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            [str(word) for word in self.words(order)],
            env=harness.environment_with(self.environment(order)),
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
        )

    def run(self, order: Order) -> int | None:
        """Run it to its end and give its exit code; None if it hangs."""
        with self.start(order) as program:
            try:
                return program.wait(LONGEST_S)
            except subprocess.TimeoutExpired:
                program.kill()
                return None

    def stopped_by(self, number: signal.Signals, order: Order, when: Callable[[], object]) -> int | None:
        """Run it until a moment, then send it a signal."""
        with self.start(order) as program:
            when()
            program.send_signal(number)
            try:
                return program.wait(LONGEST_S)
            except subprocess.TimeoutExpired:
                program.kill()
                return None


def installed(bench: harness.Benchmark) -> list[Fetcher]:
    """Return every program that is here; the version of each is kept with the answer, absent ones are told."""
    found = []
    hub = bench.peer("huggingface_hub")
    if isinstance(hub, peers.Installed):
        found.append(_hf(hub.program("hf")))
    for program, fetchers in {"curl": [_CURL], "wget": [_WGET], "aria2c": [_ARIA2, _ARIA2_CHECKED]}.items():
        if bench.program(program):
            found += fetchers
    stoker = bench.peer("stoker")
    if isinstance(stoker, peers.Installed):
        found += _stokers(stoker.program("stoker"))
    return found


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _authorization(order: Order, option: str) -> list[str | Path]:
    return [option, f"Authorization: Bearer {order.token}"] if order.token else []


_CURL = Fetcher(
    name="curl",
    words=lambda order: [
        *("curl", "--silent", "--location", "--fail", "--retry", "3", "--continue-at", "-"),
        *("--output", order.folder / FILE, *_authorization(order, "--header"), order.url),
    ],
)
_WGET = Fetcher(
    name="wget",
    words=lambda order: [
        *("wget", "--quiet", "--continue", "--tries=4", "--directory-prefix", order.folder),
        *(*_authorization(order, "--header"), order.url),
    ],
)
_ARIA2 = Fetcher(
    name="aria2c",
    words=lambda order: [
        *("aria2c", "--quiet", "--no-conf", "--continue=true", "--max-tries=4", "--dir", order.folder, "--out", FILE),
        *(*_authorization(order, "--header"), order.url),
    ],
)
_ARIA2_CHECKED = Fetcher(
    name="aria2c --checksum",
    words=lambda order: [*_ARIA2.words(order), f"--checksum=sha-256={order.sha256}"],
)


def _hf(program: Path) -> Fetcher:
    return Fetcher(
        name="hf download",
        words=lambda order: [program, "download", REPOSITORY, FILE, "--local-dir", order.folder],
        environment=lambda order: {
            "HF_ENDPOINT": order.origin,
            "HF_HOME": str(order.folder / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            **({"HF_TOKEN": order.token} if order.token else {}),
        },
    )


def _stokers(program: Path) -> list[Fetcher]:
    def environment(order: Order) -> dict[str, str]:
        home = str(order.folder / "home")
        token = {"HF_TOKEN": order.token} if order.token else {}
        return {"STOKER_HOME": home, "HF_HOME": os.path.join(home, "hub"), **token}

    def words(order: Order, *more: str) -> list[str | Path]:
        return [program, "fetch", *more, "--out", order.folder, "--no-progress"]

    return [
        # Not told that there is a hub, so that it is an address like any other.
        Fetcher(name="stoker fetch URL", words=lambda order: words(order, order.url), environment=environment),
        Fetcher(
            name="stoker fetch URL --sha256",
            words=lambda order: words(order, order.url, "--sha256", order.sha256),
            environment=environment,
        ),
        Fetcher(
            name="stoker fetch org/repo",
            words=lambda order: words(order, REPOSITORY, FILE),
            environment=lambda order: {**environment(order), "HF_ENDPOINT": order.origin},
            leaf=f"{REPOSITORY.replace('/', '-')}/{FILE}",
        ),
    ]
