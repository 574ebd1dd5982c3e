"""Which machines have or fetch which trees, as reported by workers; kept while the coordinator runs.

Nothing here is durable or has to be: after a restart workers register again, and a tree without a known machine is
taken from the coordinator. Inside the event loop, so no locks.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Annotated, Any

from fastapi import Path, Request, Response
from fastapi.responses import StreamingResponse

from stoker.coordinator.http.access import Who
from stoker.coordinator.http.app_state import ServiceContext
from stoker.coordinator.http.http_messages import (
    BYTES_ANSWER,
    BYTES_BODY,
    HEADERS,
    RouteTable,
    answer,
    headers_of,
    read_body,
)
from stoker.coordinator.http.submission_body import spooled
from stoker.coordinator.http.worker_routes import own
from stoker.coordinator.storage.tree_storage import CoordinatorTrees
from stoker.core.clock import Clock
from stoker.core.frozen import fresh, frozen
from stoker.protocol.lease_messages import Hello, MachineInventory, Renewal
from stoker.protocol.tree_messages import (
    MOST_LISTING_BYTES,
    PACK_BYTES,
    DigestsRequest,
    MissingDigests,
    PackResponse,
    SourcesRequest,
    SourcesResponse,
    TreeLocation,
    TreeRequest,
    TreeSources,
    TreeView,
)

FROM_COORDINATOR = 1
"""So many may take one tree from the coordinator at once."""
FROM_HOLDER = 4
"""So many may take one tree from a machine that has it; beyond, the coordinator helps."""


@frozen
class TreeHolderMachine:
    """A machine that has a tree whole, and says where others can get it."""

    machine: str
    url: str


@frozen
class TreeFetcherMachine:
    """A machine that is bringing a tree to itself."""

    machine: str
    began: int
    """In the order of beginning; an earlier one is further along."""
    takes_from: str
    """A machine; empty: the coordinator."""
    url: str = ""
    """Where others can get from it what has come; empty: nowhere."""


@frozen
class TreeSourceChoice:
    """Where to take it from, best first; the name is empty for the coordinator."""

    places: tuple[tuple[str, str, bool], ...]
    """Machine, address, and whether it is still getting it itself."""
    takes_from: str = ""
    """Whom this counts for."""
    why: str = ""


@frozen
class TreeAvailability:
    """What is known of one tree."""

    is_here: bool
    """The coordinator has it."""
    holders: tuple[TreeHolderMachine, ...] = ()
    fetchers: Mapping[str, TreeFetcherMachine] = fresh(factory=dict)


def choose_sources(
    known: TreeAvailability,
    asker: str,
    *,
    began: int,
    failed: frozenset[str] = frozenset(),
    most_from_coordinator: int = FROM_COORDINATOR,
    most_from_holder: int = FROM_HOLDER,
) -> TreeSourceChoice:
    """Choose for a machine that asks; `began` is its own place in the order of beginning.

    Machines that have all of it come first, the least busy of them. While there is none, one machine takes it from the
    coordinator and the others in a chain: each from one that began before it and that is not a source yet. So a tree
    leaves the coordinator once, however many machines want it at the same time. Behind every machine stands the
    coordinator, should that one fail.
    """
    others = [fetcher for fetcher in known.fetchers.values() if fetcher.machine != asker]
    busy: dict[str, int] = {}
    for fetcher in others:
        busy[fetcher.takes_from] = busy.get(fetcher.takes_from, 0) + 1
    last = (("", "", False),) if known.is_here else ()
    holders = sorted(
        (one for one in known.holders if one.machine not in failed | {asker} and one.url),
        key=lambda one: (busy.get(one.machine, 0), one.machine),
    )
    holders = [one for one in holders if busy.get(one.machine, 0) < most_from_holder] or (
        [] if known.is_here else holders
    )
    if holders:
        places = tuple((one.machine, one.url, False) for one in holders[:3])
        return TreeSourceChoice(places=(*places, *last), takes_from=holders[0].machine, why="it has the tree")
    if known.is_here and busy.get("", 0) < most_from_coordinator:
        return TreeSourceChoice(places=last, why="no other machine takes it from the coordinator")
    chain = sorted(
        (
            one
            for one in others
            if one.url and one.began < began and one.machine not in failed and not _leads_to(known, one, asker)
        ),
        # Last in the chain first: it is not a source yet.
        key=lambda one: (busy.get(one.machine, 0), one.began),
    )
    if chain:
        best = chain[0]
        return TreeSourceChoice(
            places=((best.machine, best.url, True), *last), takes_from=best.machine, why="it is further along"
        )
    return TreeSourceChoice(places=last, why="no machine that has begun can pass it on" if last else "not available")


def _leads_to(known: TreeAvailability, one: TreeFetcherMachine, asker: str) -> bool:
    """Return whether a machine gets its bytes, in the end, from the one that asks."""
    seen: set[str] = set()
    while one.takes_from and one.takes_from not in seen:
        if one.takes_from == asker:
            return True
        seen.add(one.takes_from)
        further = known.fetchers.get(one.takes_from)
        if further is None:
            return False
        one = further
    return False


SILENT_S = 180.0
"""A machine that was silent for so long is not used as a source."""
FETCHING_S = 120.0
"""A machine that fetches a tree reports it again within this time."""
_MOST_TREES = 10_000


class _Machine:
    """What one worker said of itself."""

    __slots__ = ("incarnation", "seen_s", "trees", "url")

    def __init__(self, incarnation: str, url: str, trees: frozenset[str], seen_s: float) -> None:
        self.incarnation = incarnation
        self.url = url
        self.trees = trees
        self.seen_s = seen_s


class TreeLocator:
    """Hears workers, and answers where trees are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machines: dict[str, _Machine] = {}
        self._fetching: OrderedDict[str, dict[str, tuple[TreeFetcherMachine, float]]] = OrderedDict()
        self._began = itertools.count(1)

    def hear(self, said: Hello | Renewal) -> None:
        """Hear what a machine says of itself."""
        if isinstance(said, Hello):
            self.hello(said)
        else:
            self.renewal(said)

    def hello(self, hello: Hello) -> None:
        """Hear a worker's start: what it has is what it says now."""
        trees = frozenset(hello.holdings.trees if hello.holdings is not None else ())
        now_s = self._clock.monotonic_s()
        self._machines[hello.worker] = _Machine(hello.incarnation, hello.contents_at, trees, now_s)

    def renewal(self, renewal: Renewal) -> None:
        """Hear a heartbeat; most say nothing new."""
        machine = self._machines.get(renewal.worker)
        if machine is None or machine.incarnation != renewal.incarnation:
            return
        machine.seen_s = self._clock.monotonic_s()
        if renewal.holdings is not None:
            self._note(machine, renewal.worker, renewal.holdings)

    def forget(self, worker: str) -> None:
        """Hear that a machine is no longer of the fleet."""
        self._machines.pop(worker, None)

    def answer(self, asked: SourcesRequest, here: Iterable[str]) -> SourcesResponse:
        """Return where a worker gets trees from; `here` are those of them that the coordinator has."""
        with_us, failed = frozenset(here), frozenset(asked.failed)
        return SourcesResponse(
            trees=tuple(self._one(asked.worker, tree, tree in with_us, failed) for tree in asked.trees)
        )

    def holders(self, tree: str) -> tuple[TreeHolderMachine, ...]:
        """Return the machines that have a tree whole and can be asked for it."""
        since_s = self._clock.monotonic_s() - SILENT_S
        return tuple(
            TreeHolderMachine(machine=name, url=machine.url)
            for name, machine in self._machines.items()
            if tree in machine.trees and machine.url and machine.seen_s >= since_s
        )

    def machines_with(self, tree: str) -> tuple[str, ...]:
        """Return the machines that have a tree whole, whether or not others can get it from them."""
        return tuple(sorted(name for name, machine in self._machines.items() if tree in machine.trees))

    def _one(self, worker: str, tree: str, is_here: bool, failed: frozenset[str]) -> TreeSources:  # noqa: FBT001
        now_s = self._clock.monotonic_s()
        fetching = self._fetching.setdefault(tree, {})
        self._fetching.move_to_end(tree)
        for name, (_, until_s) in list(fetching.items()):
            if until_s < now_s:
                del fetching[name]
        mine = fetching.get(worker)
        began = mine[0].began if mine is not None else next(self._began)
        fetchers = {name: fetcher for name, (fetcher, _) in fetching.items()}
        known = TreeAvailability(is_here=is_here, holders=self.holders(tree), fetchers=fetchers)
        choice = self._choose(known, worker, began, failed, mine[0] if mine is not None else None)
        if choice.places:
            machine = self._machines.get(worker)
            url = machine.url if machine is not None else ""
            fetcher = TreeFetcherMachine(machine=worker, began=began, takes_from=choice.takes_from, url=url)
            fetching[worker] = (fetcher, now_s + FETCHING_S)
        while len(self._fetching) > _MOST_TREES:
            self._fetching.popitem(last=False)
        places = tuple(TreeLocation(machine=name, url=url, is_partial=partial) for name, url, partial in choice.places)
        return TreeSources(tree=tree, places=places)

    def _choose(
        self, known: TreeAvailability, worker: str, began: int, failed: frozenset[str], mine: TreeFetcherMachine | None
    ) -> TreeSourceChoice:
        if mine is not None and not mine.takes_from and known.is_here:
            # It asks again while it takes from the coordinator: its place there is its own.
            return choose_sources(
                TreeAvailability(is_here=True, holders=known.holders), worker, began=began, failed=failed
            )
        return choose_sources(known, worker, began=began, failed=failed)

    def _note(self, machine: _Machine, name: str, holdings: MachineInventory) -> None:
        machine.trees = frozenset(holdings.trees)
        for tree in machine.trees:
            fetching = self._fetching.get(tree)
            if fetching is not None:
                fetching.pop(name, None)


LISTINGS_AT_ONCE = 1
"""Read at the same time, once they have come whole."""

TreeDigest = Annotated[str, Path(description="A tree's digest", pattern="^[0-9a-f]{64}$")]


class ContentRoutes:
    """Routes of trees: what is missing of one, its files in packs, its listing, and where machines get it from.

    Bytes go through the threads and limits of the file routes, so that no upload stands in the way of a control call.
    """

    def __init__(self, context: ServiceContext, contents: CoordinatorTrees, sources: TreeLocator) -> None:
        self._context = context
        self._contents = contents
        self._sources = sources
        self._listings = asyncio.Semaphore(LISTINGS_AT_ONCE)
        self.router = RouteTable("contents")
        add = self.router.add
        found: dict[str, Any] = {"response_class": Response, "responses": BYTES_ANSWER}
        add("/v1/trees/{tree}", self.want, methods=["POST"], response_model=TreeView)
        add("/v1/trees/{tree}", self.keep, methods=["PUT"], response_model=TreeView, openapi_extra=BYTES_BODY)
        add("/v1/trees/{tree}", self.listing, methods=["GET"], **found)
        add("/v1/contents/missing", self.missing, methods=["POST"], response_model=MissingDigests)
        add("/v1/contents", self.take, methods=["POST"], response_model=PackResponse, openapi_extra=BYTES_BODY)
        add("/v1/contents/fetch", self.fetch, methods=["POST"], **found)
        add("/v1/sources", self.sources, methods=["POST"], response_model=SourcesResponse)

    async def want(self, tree: TreeDigest, asked: TreeRequest, who: Who) -> Response:
        """Announce a tree that jobs need, or made: it is kept if it is here; if not, this says whether it may come."""
        self._context.check_any_lease(who)
        found = await self._context.keep(self._contents.want, tree, files=asked.files, size_bytes=asked.size_bytes)
        held_by = self._sources.machines_with(tree)
        if found is None:
            view = TreeView(tree=tree, files=asked.files, size_bytes=asked.size_bytes, is_here=False, held_by=held_by)
            return answer(view)
        return answer(TreeView(tree=tree, files=found.files, size_bytes=found.size_bytes, held_by=held_by))

    async def keep(self, request: Request, tree: TreeDigest, who: Who) -> Response:
        """Take a tree's listing. The tree is here if all its files are; if some are not, it is not, and is not kept."""
        self._context.check_any_lease(who)
        context, headers = self._context, headers_of(request.scope)
        body = spooled(request.receive, headers, MOST_LISTING_BYTES, disk=context.keeping, keep=context.keep)
        async with body as file, self._listings:
            kept = await context.keep(self._contents.keep_tree, tree, file)
        view = TreeView(tree=tree, files=kept.files, size_bytes=kept.size_bytes, is_here=not kept.missing)
        return answer(view)

    async def listing(self, tree: TreeDigest) -> Response:
        """Return a tree's listing: path, size, digest, executable bit and link of every file."""
        length, stream = await self._context.keep(self._contents.open_listing, tree)
        headers = {**HEADERS, "content-length": str(length)}
        return StreamingResponse(self._context.pieces(stream), 200, headers, media_type="application/json")

    async def missing(self, asked: DigestsRequest, who: Who) -> Response:
        """Return which files are not here; those that are about to come are refused at once where they have no room."""
        self._context.check_any_lease(who)
        lacking = await self._context.keep(self._contents.missing, asked.digests, asked.sizes)
        return answer(MissingDigests(digests=lacking))

    async def take(self, request: Request, who: Who) -> Response:
        """Take small files in: for each its digest (32 bytes), its size (8 bytes, big-endian) and its bytes."""
        self._context.check_any_lease(who)
        data = await read_body(request.receive, headers_of(request.scope), PACK_BYTES)
        kept, known = await self._context.keep(self._contents.keep_pack, data)
        return answer(PackResponse(kept=kept, known=known))

    async def fetch(self, asked: DigestsRequest) -> Response:
        """Return small files in the form in which they are taken; what is not here is left out."""
        length, pieces = await self._context.keep(self._contents.frames, asked.digests)
        headers = {**HEADERS, "content-length": str(length)}
        return StreamingResponse(self._stream(pieces), 200, headers, media_type="application/octet-stream")

    async def sources(self, asked: SourcesRequest, who: Who) -> Response:
        """Return the sources of trees for a worker: machines that have or fetch them; at last the coordinator."""
        asked = own(asked, who)
        here = frozenset([tree for tree in asked.trees if await self._context.keep(self._contents.has, tree)])
        return answer(self._sources.answer(asked, here))

    async def _stream(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        while piece := await self._context.keep(next, pieces, b""):
            yield piece
