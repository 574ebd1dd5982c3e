"""The code that goes along with the programs of one submission: packed once, however many jobs run it."""

from __future__ import annotations

from typing import Any

from stoker.model.errors import StokerError
from stoker.model.frozen import frozen
from stoker.worker.ordering import Desk
from stoker.worker.submitting.packing import Packed, pack
from stoker.worker.submitting.project import Project, find_project


@frozen
class CodeWishes:
    """What whoever submits says of the code, for all jobs alike."""

    is_in_place: bool = False
    """Programs run in the folder itself, where a machine has it; nothing is sent."""
    include: tuple[str, ...] = ()
    """Untracked files that go along."""
    ours: tuple[str, ...] = ()
    """Folders of Stoker's own, which never do."""


class SubmittedCode:
    """Packs the project of a desk's folder, as often as jobs differ in what they include."""

    def __init__(self, desk: Desk, wishes: CodeWishes | None = None) -> None:
        self._desk = desk
        self._wishes = wishes or CodeWishes()
        self._project: Project | None = None
        self._packed: dict[tuple[tuple[str, ...], tuple[str, ...]], Packed | StokerError] = {}

    @property
    def packed(self) -> tuple[Packed, ...]:
        """What has to be sent before the jobs are submitted, each tree once."""
        return tuple({one.digest: one for one in self._packed.values() if isinstance(one, Packed)}.values())

    @property
    def project(self) -> Project:
        """The project of the folder; raises what finding it raises."""
        if self._project is None:
            self._project = find_project(self._desk.folder, environment=self._desk.environment)
        return self._project

    def of(
        self, *, include: tuple[str, ...] = (), needed: tuple[str, ...] = (), is_in_place: bool = False
    ) -> dict[str, Any]:
        """Give the fields of a program's order that say which code it is. Raises what packing raises."""
        fields: dict[str, Any] = {"folder": self._desk.folder, "project": self.project.identity}
        if is_in_place or self._wishes.is_in_place:
            return fields
        packed = self._pack((*self._wishes.include, *include), needed)
        fields |= {"code_tree": packed.digest, "code_folder": self.project.folder}
        return fields | ({"commit": packed.commit} if packed.commit else {})

    def _pack(self, include: tuple[str, ...], needed: tuple[str, ...]) -> Packed:
        key = (include, needed)
        known = self._packed.get(key)
        if known is None:
            try:
                known = pack(self.project, desk=self._desk, include=include, needed=needed, ours=self._wishes.ours)
            except StokerError as error:
                # Ten thousand jobs of one project are refused by one look at it.
                known = error
            self._packed[key] = known
        if isinstance(known, StokerError):
            raise known
        return known
