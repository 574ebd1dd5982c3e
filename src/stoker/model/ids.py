"""Ids: of jobs (what is wanted) and of attempts (one try at it).

A job's id is a digest of everything that changes its result and nothing else. An attempt's id sorts by time and is
short enough to type a prefix of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from stoker.model.digests import Digest, digest_encoded
from stoker.model.encoding import encode

JOB_ID_SCHEMA = 1


def job_id(  # noqa: PLR0913 - everything that a job is made of
    *,
    recipe: str,
    schema_version: int,
    args: Mapping[str, object],
    mode: str = "",
    seed: int | None = None,
    split_recipe: object = None,
    train_hosts: Sequence[str] = (),
) -> Digest:
    """Give the id of a job from what it is; `args` are identity args, defaults filled, files as their digests.

    `seed` is one that is not among the args already.
    """
    text = split_recipe if split_recipe is None or type(split_recipe) is str else encode(split_recipe)
    tail = _tail(recipe, schema_version, mode, seed, text, tuple(sorted(train_hosts)))
    # Text sorts as its UTF-8 does.
    own = b"".join([_pair(key, args[key]) for key in sorted(args)])
    return digest_encoded("job", b"%bm%d:%b%b" % (_HEAD, len(args), own, tail))


# A map's keys stand sorted, and `args` sorts before all others.
_HEAD = b"m8:" + encode("args")
# Jobs come by the ten thousand and have most of their pairs in common; so many are remembered.
_MOST_KNOWN = 10_000
_known: dict[object, bytes] = {}
# Not floats: 0.0 and -0.0 are one key of a dictionary, and two values.
_REMEMBERED = frozenset({str, int, bool, type(None)})


def _pair(key: str, value: object) -> bytes:
    """Encode a key with its value, as they stand in an encoded map."""
    kind = type(value)
    if kind in _REMEMBERED:
        name: object = (key, kind, value)
    elif kind is dict and all(type(item) in _REMEMBERED for item in value.values()):  # type: ignore[attr-defined]
        name = (key, *[(one, type(item), item) for one, item in value.items()])  # type: ignore[attr-defined]
    else:
        return encode(key) + encode(value)
    known = _known.get(name)
    if known is None:
        known = encode(key) + encode(value)
        if len(_known) < _MOST_KNOWN:
            _known[name] = known
    return known


@lru_cache(maxsize=256, typed=True)
def _tail(
    recipe: str,
    schema_version: int,
    mode: str,
    seed: int | None,
    split_recipe: str | bytes | None,
    train_hosts: tuple[str, ...],
) -> bytes:
    """Encode everything but the args; a `split_recipe` in bytes is encoded already."""
    split = split_recipe if isinstance(split_recipe, bytes) else encode(split_recipe)
    return b"".join(
        (
            encode("mode") + encode(mode),
            encode("recipe") + encode(recipe),
            encode("recipe_schema") + encode(schema_version),
            encode("schema") + encode(JOB_ID_SCHEMA),
            encode("seed") + encode(seed),
            encode("split_recipe") + split,
            encode("train_hosts") + encode(train_hosts),
        )
    )


def attempt_id(started: datetime, entropy: int) -> str:
    """Give an attempt's id: `20261115-031502-7f3a09c1`, later ones sorting after earlier ones."""
    return f"{started:%Y%m%d-%H%M%S}-{entropy & 0xFFFFFFFF:08x}"
