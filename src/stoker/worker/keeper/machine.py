"""This machine, as its keeper asks about it: what is free, and whether a job could start. Looks, decides nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

from stoker.hardware.admission import Memory, memory_here
from stoker.hardware.ledger.answers import Held
from stoker.hardware.ledger.asking import Ask, Candidate
from stoker.hardware.ledger.entries import Entry
from stoker.hardware.ledger.ledger import Ledger
from stoker.host.disk import free_bytes
from stoker.host.identity import ProcessIdentity
from stoker.host.interpreter import find_python, is_bare_python
from stoker.host.other_user import OtherUser, may_execute, no_such_program
from stoker.host.process_table import living_rows
from stoker.model.capability import Capability
from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.plan.catalogue import Catalogue
from stoker.plan.device.held_base import held_base
from stoker.plan.device.variables import HIDDEN, device_variables
from stoker.plan.program.quarters import reachable_path
from stoker.wire.leasing import Grant, Measured
from stoker.worker.keeper.checking import Look
from stoker.worker.keeper.redetecting import Offer
from stoker.worker.preparing.code import python_beside, refusal_of
from stoker.worker.program_order import RECIPE
from stoker.worker.secrets_file import FILE, FoundSecrets, find_secrets

_NO_PROJECT = "/"
"""Where programs are looked for if the project's own folder is not here: no `.venv` there is the project's."""


@frozen
class Machine:
    """What a keeper needs of where it runs."""

    offer: Offer
    catalogue: Catalogue
    environment: Mapping[str, str]
    own_prefix: str
    """Where our own interpreter lives."""
    home: str
    ledger: Callable[[], Ledger]
    users: tuple[OtherUser, ...] = ()
    """The users that programs of jobs run as; none: the worker's own user."""
    accepts: tuple[str, ...] = ()
    """Trees whose code alone is run here; none: any."""
    memory: Callable[[], Memory] = memory_here
    disk: Callable[[str], int] = free_bytes

    @property
    def capability(self) -> Capability:
        """What it offers now."""
        return self.offer.capability

    def look(self, grant: Grant) -> Look:
        """See whether what a job needs is here now."""
        version, trouble = self._recipe(grant.recipe)
        is_program = grant.recipe == RECIPE
        lacks_folder = is_program and not grant.code_tree and not os.path.isdir(grant.folder)
        return Look(
            memory=self.memory(),
            disk_free_bytes=self.disk_free_bytes(),
            recipe_version=version,
            recipe_trouble=trouble,
            missing_folder=(grant.folder or "without a name") if lacks_folder else "",
            missing_program=self._program_trouble(grant) if is_program and not lacks_folder else "",
            unaccepted_code=refusal_of(grant, self.accepts),
            secret_trouble=self.secrets(grant).trouble,
            device_trouble=self._device_trouble(grant) if grant.devices else "",
        )

    def secrets(self, grant: Grant) -> FoundSecrets:
        """Give the values of a job's secrets, or why they are not known here."""
        if not grant.secrets:
            return FoundSecrets()
        path = os.path.join(self.home, "state", FILE)
        return find_secrets(grant.secrets, environment=self.child_environment(), path=path)

    def closed_python(self) -> str:
        """Return why programs that are started with `python` can't run as this machine's users; empty: they can."""
        return self._closed_to_users("python", "", _NO_PROJECT)

    def python_beside(self, grant: Grant) -> str:
        """Return the interpreter that lies beside a packed program where it was submitted, if that is here.

        Where only some code is accepted there is none: the submitter names that folder.
        """
        if not grant.code_tree or grant.environment or self.accepts:
            return ""
        return python_beside(grant.args, grant.folder, environment=self.environment, own_prefix=self.own_prefix)

    def measured(self, closed: Mapping[str, str]) -> Measured:
        """Say what is free now; `closed` is why nothing may be put here."""
        reasons = {"": "; ".join(closed.values())} if closed else {}
        memory = self.memory()
        return Measured(
            ram_available_bytes=memory.available_bytes,
            ram_room_bytes=memory.room_bytes,
            disk_free_bytes=self.disk_free_bytes(),
            free_bytes=self._device_free_bytes(),
            closed=reasons,
        )

    def disk_free_bytes(self) -> int | None:
        """Give what may still be written where results and logs go."""
        try:
            return self.disk(self.home)
        except StokerError:
            return None

    def variables(self, grant: Grant) -> dict[str, str]:
        """Give what an attempt's process gets so that it sees the devices it was granted, and no others."""
        if not self.capability.devices:
            return {}
        granted = [device for device in self.capability.devices if device.uuid in grant.devices]
        return device_variables(granted, self.environment) if granted else dict(HIDDEN)

    def child_environment(self) -> dict[str, str]:
        """Return the environment of attempts: a copy of ours."""
        return dict(self.environment)

    def holdings(self, grant: Grant, child: ProcessIdentity) -> frozenset[str]:
        """Name the ledger's entries on an attempt's devices that its process, or one below it, owns."""
        entries = self._entries(grant)
        if not entries:
            return frozenset()
        parents = {row.pid: row.parent_pid for row in living_rows()}
        return frozenset(entry.id for entry in entries if _is_below(entry.owner.pid, child.pid, parents))

    def is_held(self, grant: Grant, holdings: frozenset[str]) -> bool:
        """Whether any of these entries still stands: its owner, or one of its group, is not gone."""
        return bool(holdings) and any(entry.id in holdings for entry in self._entries(grant))

    def _recipe(self, name: str) -> tuple[int | None, str]:
        try:
            return self.catalogue.find(name).version, ""
        except StokerError as error:
            return None, str(error)

    def _program_trouble(self, grant: Grant) -> str:
        argv, python = grant.args.get("argv") or ("",), str(grant.args.get("python") or "")
        word = str(argv[0])
        if grant.environment and is_bare_python(word):
            # The environment is checked where it is made.
            return ""
        if self.users:
            beside = self.python_beside(grant)
            is_inside = bool(grant.code_tree) and not beside and _is_relative(python)
            folder = _NO_PROJECT if grant.code_tree else grant.folder
            return "" if is_inside else self._closed_to_users(word, beside or python, folder)
        return "" if grant.environment else self._missing_program(grant, word, python)

    def _closed_to_users(self, word: str, python: str, folder: str) -> str:
        """Return why a user that programs run as can't execute what a word means; empty: every user can.

        Any of them may get the job. The program is found as its start finds it (`plan.program`). A word that is found
        on PATH is not checked, except Python.
        """
        for user in self.users:
            # All that a program of another user gets of what an interpreter is found by.
            around = {"PATH": reachable_path(user, self.environment.get("PATH", os.defpath))}
            if python and not may_execute(user, self._path_of("python", python, folder, around)):
                return no_such_program(python, user)
            program = word if os.path.isabs(word) and "{" not in word else ""
            if is_bare_python(word):
                program = self._path_of(word, python, folder, around)
                if not program:
                    return f"there is no {word} that {user.name} can reach, and jobs run as {user.name} here"
            if program and not may_execute(user, program):
                return no_such_program(program, user)
        return ""

    def _path_of(self, word: str, python: str, folder: str, environment: Mapping[str, str]) -> str:
        try:
            return find_python(
                python, folder=folder, environment=environment, own_prefix=self.own_prefix, word=word
            ).path
        except StokerError:
            return ""

    def _missing_program(self, grant: Grant, word: str, python: str) -> str:
        if not python and not is_bare_python(word):
            return ""
        # Packed code runs in a folder that does not exist yet; its files are checked when the program starts.
        is_elsewhere = bool(grant.code_tree) and not os.path.isdir(grant.folder)
        folder = _NO_PROJECT if is_elsewhere else grant.folder
        if is_elsewhere and _is_relative(python):
            return ""
        try:
            found = find_python(
                python,
                folder=folder,
                environment=self.environment,
                own_prefix=self.own_prefix,
                word=word if is_bare_python(word) else "python",
            )
        except StokerError as error:
            return str(error)
        return "" if found.path else found.why

    def _device_trouble(self, grant: Grant) -> str:
        """Ask the ledger for the room, and give it back at once: the attempt's own process takes it."""
        candidates = self._candidates(grant)
        missing = [uuid for uuid in grant.devices if uuid not in {one.uuid for one in candidates}]
        if missing:
            return f"this machine has no {', '.join(missing)} now"
        try:
            answer = self.ledger().reserve(room_for(grant, candidates))
            if isinstance(answer, Held):
                self.ledger().release(answer)
                return ""
        except StokerError as error:
            return str(error)
        return answer.why

    def _candidates(self, grant: Grant) -> tuple[Candidate, ...]:
        devices = [device for device in self.capability.devices if device.uuid in grant.devices]
        return tuple(one for one in map(Candidate.of, devices) if one is not None)

    def _entries(self, grant: Grant) -> list[Entry]:
        candidates = self._candidates(grant)
        if not candidates:
            return []
        try:
            state = self.ledger().state(candidates)
        except StokerError:
            return []
        return [holder.entry for device in state.devices for holder in device.holders]

    def _device_free_bytes(self) -> dict[str, int]:
        if not self.capability.usable_devices:
            return {}
        found: dict[str, int] = {}
        with suppress(StokerError):
            candidates = tuple(one for one in map(Candidate.of, self.capability.usable_devices) if one is not None)
            for device in self.ledger().state(candidates).devices:
                if device.left_bytes is not None:
                    found[device.device.uuid] = device.left_bytes
        return found


def room_for(grant: Grant, candidates: tuple[Candidate, ...]) -> Ask:
    """Return what is asked of the ledger for a job before it starts: what was granted, on all of these devices."""
    return Ask(
        job=grant.name,
        devices=candidates,
        count=len(candidates),
        vram_bytes=grant.vram_bytes,
        may_share=grant.is_shared,
        base=held_base(grant.base) if grant.base else "",
        base_bytes=min(grant.base_bytes, grant.vram_bytes) if grant.base else 0,
    )


def _is_relative(python: str) -> bool:
    return "/" in python and not os.path.isabs(os.path.expanduser(python))


def _is_below(pid: int, top: int, parents: Mapping[int, int]) -> bool:
    """Say whether a process is another one, or descends from it."""
    seen: set[int] = set()
    while pid != top and pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
    return pid == top
