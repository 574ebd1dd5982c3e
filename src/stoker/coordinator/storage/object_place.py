"""Where a coordinator stores its objects: on its own disk, or in an S3 bucket. Recorded beside its database.

The record keeps a coordinator from starting with a store that lacks what its database names: to change the place, the
objects are moved (`move_objects`), verified, while no coordinator runs. What was moved stays where it was, as a way
back, until it is removed there.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import closing, suppress

from stoker.core.clock import Clock
from stoker.core.digests import digest_bytes
from stoker.core.errors import Conflict, LocalFile
from stoker.core.frozen import changed, frozen
from stoker.host.durable import read_regular, write_file
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import Request, read_http_settings
from stoker.store.local_store import LocalStore
from stoker.store.objects.local import LocalObjects
from stoker.store.objects.s3 import S3Objects
from stoker.store.objects.s3_bucket import S3Bucket
from stoker.store.objects.s3_passes import Pass, S3Site, read_site
from stoker.store.objects.seam import Objects, PutOutcome

PLACE_NAME = "objects.json"
STORE_NAME = "store"
_OWNER_NAME = "objects.owner"
"""What was claimed as owner of a prefix before the place was recorded: a start or a move may have been interrupted."""
_MOST_BYTES = 4096
_PACK_AT_MOST_BYTES = 1 << 20
_PACK_BYTES = 8 << 20


@frozen
class ObjectPlace:
    """The place of one coordinator's objects."""

    url: str = ""
    """`s3://BUCKET/PREFIX`; empty: the coordinator's own disk."""
    owner: str = ""
    """Random; in the bucket too, so that no other coordinator uses the same prefix. Kept when objects move to disk."""
    is_direct: bool = True
    """Machines transfer bytes directly, by passes. False: the site can't check them, all go through the coordinator."""


def read_place(folder: str) -> ObjectPlace:
    """Return where the coordinator below a folder stores its objects."""
    path = os.path.join(folder, PLACE_NAME)
    try:
        found = json.loads(read_regular(path, _MOST_BYTES))
        return ObjectPlace(url=str(found["objects"]), owner=str(found["owner"]), is_direct=bool(found["direct"]))
    except FileNotFoundError:
        return ObjectPlace()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalFile(f"{path} can't be read: {error}", hint="restore it from a backup", path=path) from None


def write_place(folder: str, place: ObjectPlace) -> None:
    """Record the place, durably."""
    text = json.dumps({"v": 1, "objects": place.url, "owner": place.owner, "direct": place.is_direct}) + "\n"
    write_file(os.path.join(folder, PLACE_NAME), text.encode(), mode=0o600)


def choose_place(folder: str, url: str, environment: Mapping[str, str], *, clock: Clock) -> None:
    """Record where a coordinator that starts with `--objects URL` stores its objects.

    Raises `Conflict` if it has stored objects elsewhere, or the prefix is another coordinator's.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    place, site = read_place(folder), read_site(url, environment)
    if place.url == site.url:
        return
    if place.url or _has_objects(folder):
        shown = f"in {place.url}" if place.url else "on its own disk"
        raise Conflict(
            f"the objects of this coordinator are {shown}, not in {site.url}",
            hint=f"move them first: stoker admin objects move --to {site.url}",
        )
    found = new_place(site, environment, clock=clock)
    place = changed(found, owner=place.owner or _owner(folder, found.owner))
    with closing(LocalStore(os.path.join(folder, STORE_NAME), clock=clock)) as store:
        store.open()
        # Its index is made when it is opened.
        with closing(S3Objects(store, site, folder=folder, clock=clock, is_listed=False)) as objects:
            objects.claim(place.owner)
    write_place(folder, place)


def new_place(site: S3Site, environment: Mapping[str, str], *, clock: Clock) -> ObjectPlace:
    """Return a new place at a site, which is checked. Raises if it can't be used."""
    checks = check_site(site, environment, clock=clock)
    return ObjectPlace(url=site.url, owner=secrets.token_hex(16), is_direct=all(one.is_good for one in checks))


def open_objects(
    folder: str,
    store: LocalStore,
    environment: Mapping[str, str],
    *,
    clock: Clock,
    progress: Callable[[], None] = lambda: None,
) -> Objects:
    """Open the objects of a coordinator where they are. Raises if S3 objects have no key here.

    `progress` is called for each object that is listed for an index.
    """
    place = read_place(folder)
    if not place.url:
        return LocalObjects(store, clock=clock)
    return S3Objects(store, read_site(place.url, environment), folder=folder, clock=clock, progress=progress)


@frozen
class SiteCheck:
    """One thing that direct transfers need of a site."""

    name: str
    is_good: bool
    detail: str


def check_site(
    site: S3Site, environment: Mapping[str, str], *, clock: Clock, request_s: float = 30.0
) -> tuple[SiteCheck, ...]:
    """Try what a coordinator and its machines need of a site; raises if it can't be used at all."""
    bucket = S3Bucket(site, clock=clock, request_s=request_s)
    data = b"stoker checks this site\n" + secrets.token_bytes(16)
    digest = digest_bytes(data)
    name = f"checks/{digest}"
    transport = Urllib3Transport(read_http_settings(environment))

    def send(method: str, use: Pass, body: bytes | None = None) -> int:
        with closing(transport.send(Request(url=use.url, method=method, headers=use.headers, body=body))) as response:
            if method == "GET" and response.status == 200 and response.read(len(data) + 1) != data:
                return 0
            return response.status

    try:
        bucket.put(name, data)
        is_conditional = not bucket.put(name, data)
        other = f"checks/{digest}.other"
        use = site.pass_to_put(other, digest, len(data), now_s=clock.wall_s())
        wrong = send("PUT", use, data[::-1])
        right = send("PUT", use, data)
        got = send("GET", site.pass_to_get(name, digest, len(data), now_s=clock.wall_s()))
        bucket.remove([name, other])
    finally:
        transport.close()
    return (
        SiteCheck(name="conditional put", is_good=is_conditional, detail="If-None-Match refuses an object that exists"),
        SiteCheck(name="signed checksum", is_good=wrong >= 400, detail=f"other bytes by a presigned PUT: {wrong}"),
        SiteCheck(name="presigned put", is_good=right == 200, detail=f"right bytes by a presigned PUT: {right}"),
        SiteCheck(name="presigned get", is_good=got == 200, detail=f"presigned GET: {got}"),
    )


@frozen
class Moved:
    """What a move did."""

    place: ObjectPlace
    objects: int
    size_bytes: int
    known: int
    """Objects that the target had."""


def move_objects(
    folder: str,
    url: str,
    environment: Mapping[str, str],
    *,
    clock: Clock,
    progress: Callable[[int, int], None] = lambda _done_bytes, _total_bytes: None,
) -> Moved:
    """Copy all objects to another place, each verified by its digest, then record the place. Resumes if repeated.

    `url` is `s3://…`, or empty for the coordinator's own disk. No coordinator of this home may run. The source stays.
    `progress` is called after each object with the copied and the total number of bytes.
    """
    place = read_place(folder)
    with closing(LocalStore(os.path.join(folder, STORE_NAME), clock=clock)) as store:
        store.open()
        target_place = ObjectPlace()
        if url:
            target_place = new_place(read_site(url, environment), environment, clock=clock)
        if target_place.url == place.url:
            raise Conflict(f"the objects are in {place.url or 'the own disk of the coordinator'} already")
        if place.url and url:
            raise Conflict(
                f"the objects are in {place.url}: only a move to the coordinator's own disk is possible",
                hint="first: stoker admin objects move --to disk",
            )
        target_place = changed(target_place, owner=place.owner or _owner(folder, target_place.owner))
        local = LocalObjects(store, clock=clock)
        bucket_site = read_site(url or place.url, environment)
        with closing(S3Objects(store, bucket_site, folder=folder, clock=clock, is_listed=not url)) as remote:
            remote.claim(target_place.owner if url else place.owner)
            if url:
                # What is there now, whatever an earlier move has noted.
                remote.rebuild()
            source: Objects = local if url else remote
            target: Objects = remote if url else local
            moved = _copy(source, target, progress)
        write_place(folder, target_place)
    return changed(moved, place=target_place)


def adopt_objects(folder: str, url: str, environment: Mapping[str, str], *, clock: Clock) -> int:
    """Take over a prefix of a bucket and make its index again; return the number of objects."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    site = read_site(url, environment)
    place = new_place(site, environment, clock=clock)
    with closing(LocalStore(os.path.join(folder, STORE_NAME), clock=clock)) as store:
        store.open()
        with closing(S3Objects(store, site, folder=folder, clock=clock, is_listed=False)) as objects:
            objects.claim(place.owner, takes_over=True)
            count = objects.rebuild()
    write_place(folder, place)
    return count


def _copy(source: Objects, target: Objects, progress: Callable[[int, int], None]) -> Moved:
    count = size_bytes = known = 0
    total_bytes = sum(one.size_bytes for one in source.list())
    pack: list[tuple[str, bytes]] = []
    pack_bytes = 0

    def put_pack() -> None:
        nonlocal known, pack_bytes
        known += len(pack) - target.put_all(pack)
        pack.clear()
        pack_bytes = 0

    for one in source.list():
        with source.open(one.digest) as stream:
            if one.size_bytes <= _PACK_AT_MOST_BYTES:
                # `put_all` compares the bytes with their digest.
                pack.append((one.digest, stream.read()))
                pack_bytes += one.size_bytes
                if pack_bytes >= _PACK_BYTES:
                    put_pack()
            else:
                known += target.put(one.digest, stream, size_bytes=one.size_bytes) is PutOutcome.KNOWN
        count += 1
        size_bytes += one.size_bytes
        progress(size_bytes, total_bytes)
    put_pack()
    return Moved(place=ObjectPlace(), objects=count, size_bytes=size_bytes, known=known)


def _owner(folder: str, fresh: str) -> str:
    """Return the owner that a coordinator without one writes into a bucket: the same one if that is repeated."""
    path = os.path.join(folder, _OWNER_NAME)
    with suppress(FileNotFoundError):
        # Earlier versions wrote an empty one when objects moved to disk.
        if found := read_regular(path, _MOST_BYTES).decode():
            return found
    write_file(path, fresh.encode(), mode=0o600)
    return fresh


def _has_objects(folder: str) -> bool:
    blobs = os.path.join(folder, STORE_NAME, "blobs")
    return any(files for _, _, files in os.walk(blobs))
