"""A handful of files of one repository: found here or fetched, named, announced; every outcome given back.

A handful is one large file, or many small ones whose writing is shared. Files with the same bytes are one group and
are fetched once.
"""

from __future__ import annotations

from collections.abc import Sequence

from stoker.host.disk import has_space
from stoker.host.http.addresses import shown
from stoker.model.digests import Digest
from stoker.model.errors import HashMismatch, NotOnServer, StokerError
from stoker.model.events import Event, Kinds
from stoker.model.frozen import changed
from stoker.store.download.engine import fetch_file
from stoker.store.download.existing import not_ours
from stoker.store.download.outcome import Outcome
from stoker.store.download.telling import Teller
from stoker.store.download.tools import ALL_OURS, NO_RECEIPTS
from stoker.store.download.wanted import Fetched, Status, Wanted
from stoker.store.hub.address import Repo
from stoker.store.hub.destinations import Destination, There
from stoker.store.hub.hub import Hub, label_of
from stoker.store.hub.refusing import explained
from stoker.store.hub.repo_file import RepoFile
from stoker.store.hub.small_files import LARGEST_BYTES, Whole, is_small, take_whole, write_together

_MOST_TOGETHER = 32
_MOST_BYTES = 4 * LARGEST_BYTES
# For connections, locks, folders and whatever the process holds besides.
_SPARE_FILES = 64

Group = tuple[RepoFile, ...]
"""Files with the same bytes."""
Arrived = tuple[RepoFile, Fetched]
"""A file whose bytes are there."""


def handfuls(groups: Sequence[Group], workers: int, *, open_files: int = 1024) -> list[list[Group]]:
    """Divide the work: the largest files first and by themselves, then the small ones in their order, together.

    Small ones are spread over all workers: where the way to the server is long, waiting side by side is what counts.
    `open_files` is how many the process may have open at once, and those of a handful all are for a moment.
    """
    large = [group for group in groups if _size(group) > LARGEST_BYTES]
    large.sort(key=_size, reverse=True)
    small = [group for group in groups if _size(group) <= LARGEST_BYTES]
    divided = [[group] for group in large]
    most = max(1, min(_MOST_TOGETHER, -(-len(small) // workers), (open_files - _SPARE_FILES) // workers))
    together: list[Group] = []
    together_bytes = 0
    for group in small:
        if len(together) >= most or (together and together_bytes + _size(group) > _MOST_BYTES):
            divided.append(together)
            together, together_bytes = [], 0
        together.append(group)
        together_bytes += _size(group)
    return [*divided, together] if together else divided


class Fetcher:
    """Fetches handfuls of one repository at one commit to one destination. Safe to use from several threads."""

    def __init__(
        self,
        hub: Hub,
        repo: Repo,
        revision: str,
        destination: Destination,
        *,
        force: bool = False,
        sha256: Digest | None = None,
    ) -> None:
        """`revision` is a commit wherever the server knows commits; `sha256` is what each file must be besides."""
        self._hub = hub
        self._repo = repo
        self._revision = revision
        self._destination = destination
        self._force = force
        self._sha256 = sha256

    def fetch(self, handful: Sequence[Group]) -> list[Outcome]:
        """Have the files of a handful in their place. What goes wrong is in the outcomes."""
        outcomes: list[Outcome] = []
        missing: list[Group] = []
        found: list[tuple[Group, There]] = []
        for everything in handful:
            group = everything
            try:
                self._hub.stop.check()
                if not self._force:
                    group, refused = self._without_others(everything)
                    outcomes += refused
                if not group:
                    continue
                there = None if self._force else self._destination.there(group[0])
            except StokerError as error:
                outcomes += self._failed(group, error)
                continue
            if there is None:
                missing.append(group)
            else:
                found.append((group, there))
        outcomes += self._settled_found(found)
        return outcomes + self._fetch_missing(missing)

    def _without_others(self, group: Group) -> tuple[Group, list[Outcome]]:
        """Leave out the files in whose place lies one of the user's."""
        kept: list[RepoFile] = []
        refused: list[Outcome] = []
        for file in group:
            path = self._destination.in_the_way(file)
            if path and not self._hub.tools.owns(path):
                refused += self._failed((file,), not_ours(path))
            else:
                kept.append(file)
        return tuple(kept), refused

    def _settled_found(self, found: Sequence[tuple[Group, There]]) -> list[Outcome]:
        arrived: list[Arrived] = []
        for group, there in found:
            fetched = Fetched(path="", status=there.status, size_bytes=there.size_bytes, sha256=there.sha256)
            arrived += _arrived(group, fetched)
        return self._settle(arrived, ours=False)

    def _fetch_missing(self, missing: Sequence[Group]) -> list[Outcome]:
        if self._hub.settings.offline:
            return [outcome for group in missing for outcome in self._failed(group, self._not_here(group[0]))]
        small = [group for group in missing if is_small(group[0])]
        others = [group for group in missing if not is_small(group[0])]
        outcomes, left = self._take_small(small) if self._has_room(small) else ([], small)
        over: StokerError | None = None
        for group in [*others, *left]:
            fetched = self._fetch_one(group) if over is None else self._failed(group, over)
            outcomes += fetched
            # The server was waited for long enough: each of the others would wait as long once more.
            over = next((one.error for one in fetched if one.error and one.error.data.get("timed_out")), None)
        return outcomes

    def _take_small(self, groups: Sequence[Group]) -> tuple[list[Outcome], list[Group]]:
        """Take small files whole and write them together; give back those that need more care as well."""
        clock = self._hub.tools.clock
        taken: list[tuple[Group, Whole, Fetched]] = []
        outcomes: list[Outcome] = []
        left: list[Group] = []
        for group in groups:
            wanted = self._wanted(group[0])
            began_s = clock.monotonic_s()
            try:
                hub = self._hub
                whole = take_whole(wanted, tools=hub.tools, patience=hub.patience, stop=hub.stop)
            except StokerError as error:
                outcomes += self._failed(group, error)
                continue
            if whole is None:
                left.append(group)
                continue
            # Told now that it is known: a file that is left is started by the engine.
            self._tell(wanted).start(0, wanted.size_bytes)
            seconds = clock.monotonic_s() - began_s
            taken.append((group, whole, _downloaded(wanted, whole.sha256, len(whole.data), seconds)))
        return outcomes + self._write(taken), left

    def _write(self, taken: Sequence[tuple[Group, Whole, Fetched]]) -> list[Outcome]:
        try:
            pairs = [(self._destination.landing(group[0]), whole.data) for group, whole, _ in taken]
            write_together(pairs, mode=self._destination.mode)
        except StokerError as error:
            if len(taken) > 1:
                # What is wrong with one file's name must not lose the others.
                return [outcome for one in taken for outcome in self._write([one])]
            return self._failed(taken[0][0], error)
        return self._settle([one for group, _, fetched in taken for one in _arrived(group, fetched)], ours=True)

    def _fetch_one(self, group: Group) -> list[Outcome]:
        hub = self._hub

        def say(event: Event) -> None:
            # The engine knows of the bytes only: that a file is there is recorded and told once it has its name.
            if event.kind != Kinds.DOWNLOAD_DONE:
                hub.tools.say(event)

        wanted = self._wanted(group[0])
        try:
            fetched = fetch_file(
                wanted,
                self._destination.landing(group[0]),
                tools=changed(hub.tools, say=say, keep=NO_RECEIPTS, owns=ALL_OURS),
                patience=hub.patience,
                stop=hub.stop,
                force=self._force,
            )
        except StokerError as error:
            return self._failed(group, explained(error, wanted.url, wanted.label, has_token=hub.has_token))
        return self._settle(_arrived(group, fetched), ours=fetched.status is Status.DOWNLOADED)

    def _settle(self, arrived: Sequence[Arrived], *, ours: bool) -> list[Outcome]:
        """Give the names, then keep the record, then tell the news."""
        if not arrived:
            return []
        try:
            for file, fetched in arrived:
                self._check(file, fetched)
            self._destination.settle([(file, fetched.sha256) for file, fetched in arrived], ours=ours)
            named = [self._named(file, fetched) for file, fetched in arrived]
            self._hub.tools.keep(named)
        except StokerError as error:
            if len(arrived) > 1:
                return [outcome for one in arrived for outcome in self._settle([one], ours=ours)]
            return self._failed((arrived[0][0],), error)
        for wanted, fetched in named:
            self._tell(wanted).done(fetched)
        return [Outcome(label=wanted.label, fetched=fetched) for wanted, fetched in named]

    def _named(self, file: RepoFile, fetched: Fetched) -> tuple[Wanted, Fetched]:
        wanted = self._wanted(file)
        return wanted, changed(fetched, path=self._destination.path(file), commit=wanted.commit, url=shown(wanted.url))

    def _tell(self, wanted: Wanted) -> Teller:
        return Teller(self._hub.tools.say, wanted, wanted.label)

    def _wanted(self, file: RepoFile) -> Wanted:
        wanted = self._hub.wanted(self._repo, self._revision, file)
        return wanted if self._sha256 is None else changed(wanted, sha256=self._sha256)

    def _check(self, file: RepoFile, fetched: Fetched) -> None:
        """Refuse bytes that are the hub's, and yet not those that were asked for, before they get a name."""
        if self._sha256 not in {None, fetched.sha256}:
            raise not_expected(label_of(self._repo, file.path), str(self._sha256), fetched.sha256)

    def _failed(self, group: Group, error: StokerError) -> list[Outcome]:
        return [Outcome(label=label_of(self._repo, file.path), error=error) for file in group]

    def _has_room(self, groups: Sequence[Group]) -> bool:
        """Whether small files may be written at once; the engine tells what is missing if not."""
        if not groups:
            return False
        try:
            free = self._hub.tools.free_bytes(self._destination.landing(groups[0][0]).folder)
            return has_space(sum(map(_size, groups)), free)
        except StokerError:
            return False

    def _not_here(self, file: RepoFile) -> NotOnServer:
        message = f"not on this machine: {self._repo}: {file.path}"
        return NotOnServer(message, file=file.path, reason="offline")


def _size(group: Group) -> int:
    # Without a size it may be anything: first, and alone.
    size_bytes = group[0].size_bytes
    return LARGEST_BYTES + 1 if size_bytes is None else size_bytes


def _downloaded(wanted: Wanted, sha256: Digest, size_bytes: int, seconds: float) -> Fetched:
    return Fetched(
        path="",
        status=Status.DOWNLOADED,
        size_bytes=size_bytes,
        sha256=sha256,
        bytes_from_network=size_bytes,
        seconds=seconds,
        commit=wanted.commit,
    )


def _arrived(group: Group, fetched: Fetched) -> list[Arrived]:
    """Give what is true of each file of a group: for a second one with the same bytes, nothing was sent."""
    status = Status.LINKED if fetched.status is Status.DOWNLOADED else fetched.status
    another = changed(fetched, status=status, bytes_from_network=0, bytes_resumed=0, seconds=0.0)
    return [(file, fetched if number == 0 else another) for number, file in enumerate(group)]


def not_expected(label: str, expected: str, found: str) -> HashMismatch:
    """Give the error for a file whose digest is another one than whoever asked for it said."""
    hint = "check the digest that was given, and the file's revision"
    return HashMismatch(f"{label} is not sha256 {expected}: the hub's has sha256 {found}", hint=hint)
