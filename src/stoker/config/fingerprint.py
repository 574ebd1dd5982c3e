"""What two configurations have to share to be the same one.

`identity_fingerprint` names a trial: everything that is wanted, and nothing about how it is run (threads, verbosity)
or noted beside it. `full_fingerprint` covers all of it. Both are digests of the canonical encoding, so types count
(1, 1.0, "1" and true are four values, and so are NaN, infinity, "inf" and null), the order of keys does not, and
neither do the layers that the values came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stoker.config.schema import Schema
from stoker.config.trees import without
from stoker.model.digests import Digest, digest_encoded, digest_value
from stoker.model.encoding import encode

IDENTITY: Final = "config-identity"
FULL: Final = "config-full"


def identity_fingerprint(values: Mapping[str, Any], schema: Schema) -> Digest:
    """Digest what is wanted: every leaf but those that are declared as being about the running of it."""
    return digest_value(IDENTITY, _without(dict(values), _runtime_steps(schema)))


def full_fingerprint(values: Mapping[str, Any], notes: Mapping[str, Any]) -> Digest:
    """Digest everything, notes included."""
    return digest_value(FULL, {"values": dict(values), "notes": dict(notes)})


class TrialFingerprints:
    """Identity fingerprints of many trials that share most of their values with one base.

    Whatever a trial has from the base as the very same object is not encoded again. Gives what `identity_fingerprint`
    gives.
    """

    def __init__(self, base: Mapping[str, Any], schema: Schema) -> None:
        self._runtime = _runtime_steps(schema)
        self._touched = {steps[0] for steps in self._runtime}
        self._base = dict(base)
        self._chunks = {key: self._chunk(key, value) for key, value in base.items()}
        self._order = sorted(self._chunks, key=str.encode)

    def identity(self, values: Mapping[str, Any]) -> Digest:
        """Digest what one trial wants."""
        base, chunks = self._base, self._chunks
        order = self._order if values.keys() == base.keys() else sorted(values, key=str.encode)
        parts = [
            chunks[key] if key in base and values[key] is base[key] else self._chunk(key, values[key]) for key in order
        ]
        wanted = [part for part in parts if part]
        return digest_encoded(IDENTITY, b"m%d:%b" % (len(wanted), b"".join(wanted)))

    def _chunk(self, key: str, value: Any) -> bytes:
        """Encode a key with its value, as they stand in an encoded map; nothing if all of it is about running."""
        if key in self._touched:
            left = _without({key: value}, self._runtime)
            if not left:
                return b""
            value = left[key]
        return encode(key) + encode(value)


def _runtime_steps(schema: Schema) -> list[list[str]]:
    return [path.split(".") for path, declared in schema.leaves.items() if declared.is_runtime]


def _without(values: dict[str, Any], paths: list[list[str]]) -> dict[str, Any]:
    for steps in paths:
        values = without(values, steps)
    return values
