"""From words such as `adapters=8` to a company: every fault at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.hardware.estimate.company import Company, Where
from stoker.hardware.estimate.reading import (
    KEYS,
    Readers,
    choice_of,
    count_from,
    flag_of,
    names_in,
    position_faults,
    read_words,
    refuse,
    target_faults,
)
from stoker.hardware.estimate.shape import ModelShape
from stoker.hardware.estimate.training import Method, Width
from stoker.model.faults import Fault

ADAPTERS = "adapters"
COMPANY_KEYS: Mapping[str, str] = {
    ADAPTERS: "how many are trained at once over one base, by language/lora; then only the keys below and method, "
    "batch, sequence, dtype, rank and targets say something",
    "device": "cuda, or cpu for the machine's own memory",
    "compiled": "false if kernels are not compiled",
    "packed": "false if no two sequences ever lie in one row",
    "turns": "together, or one if one adapter at a time is in a step",
}
"""What may be said of a company beside what is said of a training."""
WORDS: Mapping[str, str] = {ADAPTERS: ADAPTERS, "rows": "batch", "sequence": "sequence", "rank": "rank"}
"""What its numbers are called here."""
_FIELDS = {"batch": "rows", "device": "where", "compiled": "is_compiled", "packed": "is_packed"}
_TURNS = {"together": True, "one": False}


def is_of_company(words: Sequence[str]) -> bool:
    """Say whether words are of a company: they say how many adapters there are."""
    return any(word.partition("=")[0] == ADAPTERS for word in words)


def read_company(shape: ModelShape, words: Sequence[str]) -> Company:
    """Read a company over a model; `ArgsFaults` has everything that is wrong."""
    others = {name: _is_not_of_company for name in KEYS if name not in _READERS}
    said, faults = read_words(words, {**_READERS, **others})
    is_full = said.pop("method", Method.LORA) is Method.FULL
    if is_full:
        faults.append(Fault("method", "full trains every weight, and a company trains adapters"))
    together = said.pop("turns", True)
    fields: dict[str, Any] = {_FIELDS.get(key, key): value for key, value in said.items()}
    if fields.get("where") is Where.CPU:
        fields.setdefault("dtype", Width.FP32)
    company = Company(shape=shape, is_synchronized=together, **fields)
    faults += position_faults(shape, company.sequence)
    faults += target_faults(shape, company.targets)
    refuse(faults, "what is said of the company")
    return company


def _turns(text: str) -> bool:
    if text.lower() not in _TURNS:
        message = f"{text!r} is none of {', '.join(_TURNS)}"
        raise ValueError(message)
    return _TURNS[text.lower()]


def _is_not_of_company(_: str) -> None:
    message = "is nothing that a company's adapters differ in: leave it out"
    raise ValueError(message)


_READERS: Readers = {
    ADAPTERS: count_from(1),
    "method": choice_of(Method),
    "batch": count_from(1),
    "sequence": count_from(1),
    "dtype": choice_of(Width, Width.FP16),
    "rank": count_from(1),
    "targets": names_in,
    "device": choice_of(Where),
    "compiled": flag_of,
    "packed": flag_of,
    "turns": _turns,
}
