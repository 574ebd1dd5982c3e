"""Downloads under faults in any order, against one sentence: a final name means the bytes of exactly one version.

Servers misbehave, files change, processes are killed, power is lost, side files are edited. Whatever came before, what
lies under the final name is one published version as a whole, and the one that was asked for where a digest says which;
and once the faults end, the next run finishes.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stoker.core.frozen import changed
from stoker.transfer.download.partial import Sidecar, dump_sidecar, load_sidecar
from stoker.transfer.download.types import DownloadTimeouts
from tests.fault.download_lab import NAME, Lab, open_lab, random_bytes
from tests.fault.download_parent import Downloads
from tests.servers import habits as bad
from tests.servers.faulty import Answer, Asked, Habit, Line, Version, well
from tests.unit.host.real_processes import is_running, wait_until

SIZES = st.sampled_from([1_200_000, 1_200_000, 1_200_000, 1_201_000, 2_500_000, 150_000, 150_000, 1, 0])
"""Mostly what is too large to be held in memory until it is whole."""
PLACES = st.integers(0, 1_200_000)
ENDS = {0, 10, 11, 12, 13, 14, 16}

TOLD: dict[str, Habit] = {
    "well": well,
    "range ignored": bad.ignores_ranges,
    "early": bad.to_resumes(bad.shifted(-100)),
    "late": bad.to_resumes(bad.shifted(100)),
    "misaligned": bad.to_resumes(bad.shifted(-100, as_long=True)),
    "no content range": bad.to_resumes(bad.content_range(None)),
    "other total": bad.to_resumes(bad.content_range("bytes {first}-{last}/7")),
    "416": bad.to_resumes(bad.refusing_range()),
    "multipart": bad.to_resumes(bad.multipart),
    "longer": bad.to_resumes(bad.resized(10)),
    "gzip": bad.encoded("gzip"),
    "chunks": bad.chunked([777]),
    "chunks cut": bad.chunked(is_cut=True),
    "closed": bad.before_head(Line.close),
    "reset": bad.before_head(Line.reset),
    "500": bad.status(500),
    "429": bad.status(429, Retry_After="5"),
    "404": bad.status(404),
    "403": bad.status(403),
    "412": bad.to_resumes(bad.status(412)),
    "304": bad.status(304),
    "deaf to conditions": lambda asked, version: version.answer(asked.without("If-Range")),
    "dislikes conditions": lambda asked, version: version.answer(
        asked.without("Range") if asked.field("If-Range") else asked
    ),
    "two lengths": bad.with_fields(content_length=("5", "6")),
    "no length": bad.unannounced(),
    "no validators": bad.with_fields(etag=None, last_modified=None),
}
"""What can be seen through without a digest."""

LIES: dict[str, Habit] = {
    "flipped": lambda asked, version: (
        bad.flipped(len(version.data) // 2)(asked, version) if version.data else well(asked, version)
    ),
    "misaligned and lies": bad.to_resumes(bad.shifted(-100, as_long=True, claims_as_asked=True)),
    "page": bad.page(b"<html>please log in</html>"),
    "closed early": bad.unannounced(1000),
    "length too small": bad.with_fields(content_length="100"),
}
"""What only a digest can see through."""


@dataclass(frozen=True)
class Fault:
    """What one request meets: a habit, and perhaps a cut of the body."""

    name: str
    cut_at: int | None
    is_reset: bool

    def habit(self) -> Habit:
        habit = {**TOLD, **LIES}[self.name]
        # A body without a length that ends early is whole, for all that anybody can see.
        if self.cut_at is None or self.name == "no length":
            return habit
        at, end = self.cut_at, Line.reset if self.is_reset else Line.close

        def answer(asked: Asked, version: Version) -> Answer:
            made = habit(asked, version)
            made.body = (made.data[:at], end)
            return made

        return answer


def faults(names: dict[str, Habit]) -> st.SearchStrategy[list[Fault]]:
    one = st.builds(Fault, st.sampled_from(sorted(names)), st.none() | PLACES, st.booleans())
    return st.lists(one, max_size=4)


def one_after_another(drawn: list[Fault]) -> Habit:
    """Meet the first requests with these faults, and all others well."""
    habits = [fault.habit() for fault in drawn]
    return lambda asked, version: (habits[asked.number] if asked.number < len(habits) else well)(asked, version)


@cache
def _bytes(size: int, seed: int) -> bytes:
    return random_bytes(size, seed)


ASIDE = re.compile(rf"{re.escape(NAME)}\.part(\.json)?~\d?")


class DownloadMachine(RuleBasedStateMachine):
    """One file on one server, fetched again and again."""

    @initialize(has_digest=st.booleans(), size=SIZES)
    def begin(self, has_digest: bool, size: int) -> None:
        self.stack = ExitStack()
        shm = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(dir=shm))) / "out"
        self.has_digest = has_digest
        self.has_spoilt = False
        self.published = [self._version(size, "strong", 0)]
        self.lab: Lab = self.stack.enter_context(open_lab(self.folder, self.published[0], read_s=5))
        self.children: Downloads | None = None

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            try:
                self._finish()
            finally:
                self.stack.close()

    # --- the server

    @rule(size=SIZES, names=st.sampled_from(["strong", "strong", "dated", "weak", "none"]))
    def publish(self, size: int, names: str) -> None:
        self.published.append(self._version(size, names, len(self.published)))
        self.lab.server.versions["/file"] = self.published[-1]

    def _version(self, size: int, names: str, seed: int) -> Version:
        etag = {"strong": f'"{seed}"', "weak": f'W/"{seed}"'}.get(names)
        date = f"Wed, 01 Jan 2025 00:00:{seed % 60:02d} GMT" if names in ("strong", "dated") else None
        return Version(data=_bytes(size, seed), etag=etag, last_modified=date)

    # --- runs

    @rule(drawn=faults(TOLD), attempts=st.integers(1, 3))
    def run(self, drawn: list[Fault], attempts: int) -> None:
        self._run(drawn, attempts)

    @precondition(lambda self: self.has_digest)
    @rule(drawn=faults({**TOLD, **LIES}), attempts=st.integers(1, 3))
    def run_among_liars(self, drawn: list[Fault], attempts: int) -> None:
        self._run(drawn, attempts)

    @rule(drawn=faults(TOLD), change_at=st.integers(0, 2), size=SIZES)
    def run_while_the_file_changes(self, drawn: list[Fault], change_at: int, size: int) -> None:
        before, after = self.published[-1], self._version(size, "strong", len(self.published))
        self.published.append(after)
        habit = one_after_another(drawn)
        self._run(drawn, 3, lambda asked, _: habit(asked, before if asked.number <= change_at else after), wanted=after)
        self.lab.server.versions["/file"] = after

    def _run(
        self, drawn: list[Fault], attempts: int, habit: Habit | None = None, wanted: Version | None = None
    ) -> None:
        wanted = wanted or self.published[-1]
        self.lab.server.become(habit or one_after_another(drawn))
        code = self.lab.code(
            wanted if self.has_digest else None, patience=DownloadTimeouts(attempts=attempts), force=not self.has_digest
        )
        assert code in ENDS
        if code == 0:
            assert self.lab.has() is not None
            assert not self.has_digest or self.lab.has() == wanted.data

    @rule(drawn=faults(TOLD), moment=st.integers(0, 40))
    def run_until_killed(self, drawn: list[Fault], moment: int) -> None:
        self._run_child(drawn, at={"left": moment, "does": "SIGKILL"})

    @rule(drawn=faults(TOLD), moment=st.integers(0, 40), error=st.sampled_from(["EIO", "ENOSPC"]))
    def run_until_a_call_fails(self, drawn: list[Fault], moment: int, error: str) -> None:
        calls = ("pwrite", "fsync", "fdatasync", "rename", "replace")
        self._run_child(drawn, at={"left": moment, "does": error, "calls": calls, "steps": False})

    @rule(place=PLACES, with_power=st.booleans())
    def run_until_killed_in_the_body(self, place: int, with_power: bool) -> None:
        reached = threading.Event()
        self.lab.server.become(
            lambda asked, version: bad.stalling(max(0, place - asked.first_byte), reached)(asked, version)
        )
        children = self._children()
        if not self.has_digest:
            self.lab.path.unlink(missing_ok=True)
        children.start(self.published[-1] if self.has_digest else None)
        # What is there already is not asked for.
        wait_until(lambda: reached.is_set() or not is_running(children.pid))
        with suppress(ProcessLookupError):
            children.kill()
        children.end()
        if not with_power:
            self._lose_power(zeroes=True)

    def _run_child(self, drawn: list[Fault], **order: object) -> None:
        self.lab.server.become(one_after_another(drawn))
        if not self.has_digest:
            self.lab.path.unlink(missing_ok=True)
        quick = {"attempts": 2, "longest_pause_s": 0.0, "longest_retry_after_s": 0.0}
        code = self._children().run(self.published[-1] if self.has_digest else None, patience=quick, **order)
        assert code == -9 or code in ENDS

    def _children(self) -> Downloads:
        if self.children is None:
            self.children = self.stack.enter_context(Downloads(self.lab.server, self.folder))
        return self.children

    # --- what happens between runs

    @rule(cut=st.integers(0, 1_200_000))
    def cut_the_partial(self, cut: int) -> None:
        if self.lab.partial.exists():
            size = self.lab.partial.stat().st_size
            os.truncate(self.lab.partial, max(0, size - cut))

    @precondition(lambda self: self.has_digest)
    @rule(place=PLACES, grow=st.integers(0, 200_000))
    def edit_the_partial(self, place: int, grow: int) -> None:
        if self.lab.partial.exists():
            data = bytearray(self.lab.partial.read_bytes())
            if data:
                data[place % len(data)] ^= 1
            self.lab.partial.write_bytes(data + b"x" * grow)

    @rule(place=PLACES, how=st.sampled_from(["delete", "empty", "cut", "flip", "foreign"]))
    def spoil_the_sidecar(self, place: int, how: str) -> None:
        path = self.folder / f"{NAME}.part.json"
        self._tidy()
        if not path.exists():
            return
        self.has_spoilt = True
        data = bytearray(path.read_bytes())
        if how == "flip" and data:
            data[place % len(data)] ^= 1 << place % 8
        spoilt: dict[str, bytes | bytearray] = {
            "empty": b"",
            "cut": data[: len(data) // 2],
            "flip": data,
            "foreign": b'{"etag": "\\"0\\""}',
        }
        if how == "delete":
            path.unlink()
        else:
            path.write_bytes(bytes(spoilt[how]))

    def _tidy(self) -> None:
        for path in self.folder.iterdir():
            if ASIDE.fullmatch(path.name):
                path.unlink()

    @rule(zeroes=st.booleans())
    def lose_power(self, zeroes: bool) -> None:
        self._lose_power(zeroes=zeroes)

    def _lose_power(self, *, zeroes: bool) -> None:
        path = self.folder / f"{NAME}.part.json"
        record = load_sidecar(path.read_bytes()) if path.exists() else None
        if isinstance(record, Sidecar) and self.lab.partial.exists():
            path.write_bytes(dump_sidecar(changed(record, boot_id="another")))
            data = self.lab.partial.read_bytes()
            kept = data[: record.durable_bytes]
            self.lab.partial.write_bytes(kept + b"\0" * (len(data) - len(kept)) if zeroes else kept)

    @rule(what=st.sampled_from([NAME, f"{NAME}.part", f"{NAME}.lock", "everything"]))
    def remove(self, what: str) -> None:
        if what == "everything":
            shutil.rmtree(self.folder)
            self.folder.mkdir()
        with suppress(FileNotFoundError):
            (self.folder / what).unlink()

    @precondition(lambda self: self.has_digest)
    @rule()
    def edit_the_file(self) -> None:
        """Somebody else's doing: the next run mends it, and until then it is theirs."""
        if self.lab.path.exists():
            self.lab.path.unlink()
            self.lab.path.write_bytes(b"edited")
            self._run([], 1)

    # --- what is always true

    @invariant()
    def the_file_is_one_version_or_nothing(self) -> None:
        if hasattr(self, "lab"):
            data = self.lab.has()
            assert data is None or any(data == version.data for version in self.published)

    def _finish(self) -> None:
        if not self.has_digest:
            self.lab.path.unlink(missing_ok=True)
        self._run([], 1)
        assert self.lab.has() == self.published[-1].data
        left = [name for name in self.lab.leftovers() if not name.startswith(".stoker-tmp-")]
        # Without its record a partial file may be anybody's: it is kept aside.
        assert [name for name in left if not (self.has_spoilt and ASIDE.fullmatch(name))] == []


def configured(max_examples: int, steps: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


def test_whatever_happens_a_final_name_means_one_version():
    run_state_machine_as_test(DownloadMachine, settings=configured(20, 15))


@pytest.mark.slow
def test_whatever_happens_a_final_name_means_one_version_at_length():
    run_state_machine_as_test(DownloadMachine, settings=replace_profile(250, 30))


def replace_profile(max_examples: int, steps: int) -> settings:
    """New examples each time."""
    return settings(configured(max_examples, steps), derandomize=False)
