"""A large file between a disk and an S3 store by obstore alone: `put`, `get`, and `hashed`: a get with its SHA-256.

The file is `TREE_FILE`, the store is in `S3_URL` and the usual variables. `hashed` feeds a thread with the bytes as
they come. A fetched file is synced, as Stoker does it. `executed` counts bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import obstore
import speak
from obstore.store import S3Store

from stoker.store.objects.s3_passes import read_site
from stoker.store.trees import HashLane

NAME = "alone.bin"


def main() -> None:
    asked = speak.read_arguments(ways=("put", "get", "hashed"))
    site = read_site(os.environ["S3_URL"], os.environ)
    store = S3Store(
        site.bucket,
        prefix=site.prefix,
        endpoint=site.endpoint,
        region=site.region,
        access_key_id=site.keys.id,
        secret_access_key=site.keys.secret,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": timedelta(seconds=600)},
    )
    source, target = Path(os.environ["TREE_FILE"]), asked.home / NAME
    started, used = time.perf_counter(), time.process_time()
    if asked.way == "put":
        obstore.put(store, NAME, source)
        done = source.stat().st_size
    else:
        done = _get(store, target, is_hashed=asked.way == "hashed")
    ended, used = time.perf_counter(), time.process_time() - used
    shutil.rmtree(asked.home)
    speak.tell(asked, seconds=ended - started, total=None, executed=done, cpu_seconds=used)


def _get(store: S3Store, target: Path, *, is_hashed: bool) -> int:
    hashing = hashlib.sha256()
    with open(target, "wb", buffering=0) as file, HashLane() as lane:
        for piece in obstore.get(store, NAME).stream(min_chunk_size=1 << 20):
            data = bytes(piece)
            file.write(data)
            if is_hashed:
                lane.feed(hashing, data)
        lane.wait()
        os.fsync(file)
    if is_hashed and hashing.hexdigest() != os.environ["ALONE_SHA256"]:
        raise SystemExit("other bytes came")
    return target.stat().st_size


main()
