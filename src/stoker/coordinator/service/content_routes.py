"""Routes of trees: what is missing of one, its files in packs, its listing; where machines get it from.

Bytes go through the threads and limits of the file routes, so that no upload stands in the way of a control call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import StreamingResponse

from stoker.coordinator.keeping.contents import Contents
from stoker.coordinator.service.answers import BYTES_ANSWER, BYTES_BODY, HEADERS, answer
from stoker.coordinator.service.bodies import spooled
from stoker.coordinator.service.intake import headers_of, read_body
from stoker.coordinator.service.office import Office
from stoker.coordinator.service.sources import SourceDesk
from stoker.coordinator.service.who import Who
from stoker.coordinator.service.worker_routes import own
from stoker.wire.contents import (
    MOST_LISTING_BYTES,
    PACK_BYTES,
    DigestsAsk,
    Missing,
    PackKept,
    Sources,
    SourcesAsk,
    TreeAsk,
    TreeView,
)

LISTINGS_AT_ONCE = 1
"""Read at the same time, once they have come whole."""

TreeDigest = Annotated[str, Path(description="A tree's digest", pattern="^[0-9a-f]{64}$")]


class ContentRoutes:
    """Answers them."""

    def __init__(self, office: Office, contents: Contents, sources: SourceDesk) -> None:
        self._office = office
        self._contents = contents
        self._sources = sources
        self._listings = asyncio.Semaphore(LISTINGS_AT_ONCE)
        self.router = APIRouter(tags=["contents"])
        add = self.router.add_api_route
        found: dict[str, Any] = {"response_class": Response, "responses": BYTES_ANSWER}
        add("/v1/trees/{tree}", self.want, methods=["POST"], response_model=TreeView)
        add("/v1/trees/{tree}", self.keep, methods=["PUT"], response_model=TreeView, openapi_extra=BYTES_BODY)
        add("/v1/trees/{tree}", self.listing, methods=["GET"], **found)
        add("/v1/contents/missing", self.missing, methods=["POST"], response_model=Missing)
        add("/v1/contents", self.take, methods=["POST"], response_model=PackKept, openapi_extra=BYTES_BODY)
        add("/v1/contents/fetch", self.fetch, methods=["POST"], **found)
        add("/v1/sources", self.sources, methods=["POST"], response_model=Sources)

    async def want(self, tree: TreeDigest, asked: TreeAsk) -> Response:
        """Say that jobs will need a tree: it is kept if it is here; if not, whether it may come."""
        found = await self._office.keep(self._contents.want, tree, files=asked.files, size_bytes=asked.size_bytes)
        held_by = self._sources.machines_with(tree)
        if found is None:
            view = TreeView(tree=tree, files=asked.files, size_bytes=asked.size_bytes, is_here=False, held_by=held_by)
            return answer(view)
        return answer(TreeView(tree=tree, files=found.files, size_bytes=found.size_bytes, held_by=held_by))

    async def keep(self, request: Request, tree: TreeDigest) -> Response:
        """Take a tree's listing. The tree is here if all its files are; if some are not, it is not, and is not kept."""
        office, headers = self._office, headers_of(request.scope)
        body = spooled(request.receive, headers, MOST_LISTING_BYTES, disk=office.keeping, keep=office.keep)
        async with body as file, self._listings:
            kept = await office.keep(self._contents.keep_tree, tree, file)
        view = TreeView(tree=tree, files=kept.files, size_bytes=kept.size_bytes, is_here=not kept.missing)
        return answer(view)

    async def listing(self, tree: TreeDigest) -> Response:
        """Give a tree's listing: path, size, digest, executable bit and link of every file."""
        length, stream = await self._office.keep(self._contents.open_listing, tree)
        headers = {**HEADERS, "content-length": str(length)}
        return StreamingResponse(self._office.pieces(stream), 200, headers, media_type="application/json")

    async def missing(self, asked: DigestsAsk) -> Response:
        """Say which files are not here; those that are about to come are refused at once where they have no room."""
        lacking = await self._office.keep(self._contents.missing, asked.digests, asked.sizes)
        return answer(Missing(digests=lacking))

    async def take(self, request: Request) -> Response:
        """Take small files in: for each its digest (32 bytes), its size (8 bytes, big-endian) and its bytes."""
        data = await read_body(request.receive, headers_of(request.scope), PACK_BYTES)
        kept, known = await self._office.keep(self._contents.keep_pack, data)
        return answer(PackKept(kept=kept, known=known))

    async def fetch(self, asked: DigestsAsk) -> Response:
        """Give small files in the form in which they are taken; what is not here is left out."""
        length, pieces = await self._office.keep(self._contents.frames, asked.digests)
        headers = {**HEADERS, "content-length": str(length)}
        return StreamingResponse(self._stream(pieces), 200, headers, media_type="application/octet-stream")

    async def sources(self, asked: SourcesAsk, who: Who) -> Response:
        """Say where a worker gets trees from: whoever has them, or is further along; at last the coordinator."""
        asked = own(asked, who)
        here = frozenset([tree for tree in asked.trees if await self._office.keep(self._contents.has, tree)])
        return answer(self._sources.answer(asked, here))

    async def _stream(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        while piece := await self._office.keep(next, pieces, b""):
            yield piece
