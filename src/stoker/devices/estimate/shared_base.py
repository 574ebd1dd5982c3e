"""A company of adapters as its memory sees it: one frozen base, held once, and what every member adds.

Banks and rows are padded to the largest member, so all members of a company take the same, and a company of K takes
`base_bytes + K * member_bytes`. That is what the ledger charges: the base once, then increments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate, islice, repeat, takewhile
from typing import Any

from stoker.core.errors import Diagnostic, InsufficientDeviceMemory
from stoker.core.frozen import changed, frozen
from stoker.core.text import format_size
from stoker.devices.estimate.model_shapes import ModelShape
from stoker.devices.estimate.terms import (
    Correction,
    EstimateTerm,
    calibration_term,
    context_bytes_of,
    refuse_no_adapters,
)
from stoker.devices.estimate.training_setup import (
    ALL_LINEAR,
    KEYS,
    Method,
    Readers,
    Width,
    adapter_parameters,
    choice_of,
    count_from,
    flag_of,
    names_in,
    position_faults,
    read_words,
    refuse,
    target_faults,
    targeted,
)

# What the language cookbook's engine holds in one step, counted from its own forward and backward pass.
#
# It keeps no graph of autograd's: of each block what came in, rotated queries, keys and values with what attention
# gave, what the second half got, gate and up, and the narrow products of adapters. Norms and gates are computed again.
# Where kernels are not compiled, what is done element by element makes copies of its own, mostly in 32 bits.

CHUNK_BYTES = 512 * 1024**2
"""Of the logits, in 32 bits, of the tokens whose losses are computed at a time."""
_FLOAT = 4
_INT = 8


@frozen
class MemberActivations:
    """How one member's rows go through the base."""

    shape: ModelShape
    rank: int
    targets: tuple[str, ...]
    tokens: int
    sequence: int
    dtype: Width
    is_compiled: bool
    is_packed: bool = False
    has_flash: bool = True
    """Attention never holds its scores."""

    @property
    def width(self) -> int:
        return self.dtype.bytes

    def kept_bytes(self) -> int:
        """Return what all blocks keep until the backward pass, with what goes into the first and out of the last."""
        shape, qkv = self.shape, self.shape.q_width + 2 * self.shape.kv_width
        narrow = self.rank * len(targeted(shape, self.targets))
        kept = 2 * shape.hidden + qkv + shape.q_width + 2 * shape.inner + narrow
        if shape.has_head_norms:
            kept += qkv
        block = kept * self.width + self._attention_bytes()
        # The last block's result, its norm, and the gradient of that; angles of positions; ids and labels.
        ends = 3 * shape.hidden * self.width + shape.head_dim * _FLOAT + 2 * _INT
        return self.tokens * (shape.layers * block + ends)

    def _attention_bytes(self) -> int:
        """Return what attention keeps of one token in one block, beyond what went in and came out."""
        shape = self.shape
        if not self.has_flash:
            # Scores before and after softmax, keys and values for every head.
            return shape.heads * self.sequence * 2 * self.width + 2 * shape.q_width * self.width
        sums = shape.heads * _FLOAT
        return sums + (self._packed_bytes() if self.is_packed else 0)

    def _packed_bytes(self) -> int:
        if self.dtype is Width.FP32:
            # A mask of every row, as 32-bit floats.
            return self.sequence * _FLOAT
        # Keys and values for every head.
        return 2 * self.shape.q_width * self.width

    def working_bytes(self) -> int:
        """Return what one block's backward pass has beyond that, at its fullest."""
        return self.tokens * max(self._gate_bytes(), self._rest_bytes())

    def _gate_bytes(self) -> int:
        """While the gate is gone through backward: what comes from above, what it gave, and three results."""
        inner = self.shape.inner
        held = (self.shape.hidden + 4 * inner) * self.width
        if self.is_compiled:
            return held
        # In 32 bits: gate, up and the gradient (there already if the base is), sigma, silu, and products on their way.
        copies = 4 if self.dtype is Width.FP32 else 8
        return held + copies * inner * _FLOAT

    def _rest_bytes(self) -> int:
        """While attention is gone through backward."""
        shape, width = self.shape, self.width
        qkv = shape.q_width + 2 * shape.kv_width
        left = (4 * shape.hidden + shape.q_width) * width
        # Gradients of queries, keys and values, joined anew; the kernel's own sums in 32 bits, and keys for every head.
        attention = 2 * qkv * width + shape.q_width * _FLOAT + (2 * shape.q_width * width if self._has_groups else 0)
        if not self.has_flash:
            attention += 2 * shape.heads * self.sequence * width
        return left + attention

    @property
    def _has_groups(self) -> bool:
        return self.shape.kv_heads != self.shape.heads


def loss_bytes(shape: ModelShape, dtype: Width, tokens: int, *, is_compiled: bool) -> int:
    """Return what one chunk of the loss holds, of that many tokens or fewer."""
    words = min(tokens, chunk_tokens(shape)) * shape.vocabulary
    if is_compiled:
        # Logits and their gradient.
        return words * 2 * dtype.bytes
    # Those in 32 bits, where they are not already; where the label is; softmax, labels and difference on their way.
    wide = 0 if dtype is Width.FP32 else _FLOAT
    return words * (dtype.bytes + wide + 1 + 3 * _FLOAT)


def chunk_tokens(shape: ModelShape) -> int:
    """Return how many tokens' logits are there at a time, at most."""
    return max(1, CHUNK_BYTES // (_FLOAT * shape.vocabulary))


def state_bytes(count: int, dtype: Width) -> int:
    """Return what an adapter of so many parameters always holds: itself, two moments, gathered gradients, a copy."""
    return count * (4 * _FLOAT + dtype.bytes)


def first_step_bytes(count: int, dtype: Width) -> int:
    """Return what the allocator holds beyond its tensors after the first compiled step, for each of so many parameters.

    Fitted, not counted: on an H200 it was 4 to 16 bytes a parameter, most where kernels were compiled for the first
    time. Nobody has found out yet what takes it.
    """
    return count * (3 * _FLOAT + dtype.bytes) * 2 // 3


def updating_bytes(count: int, dtype: Width, *, is_compiled: bool) -> int:
    """Return what its update makes beside that: gradients, their sums, and copies of the larger half as it is moved."""
    copies = 0 if is_compiled else 6
    return count * (dtype.bytes + _FLOAT) + copies * _FLOAT * count * 3 // 5


MIB = 1024**2
MANY = 32
"""As so many a company counts whose number nobody knows yet."""
IMPORTS_BYTES = 512 * MIB
"""What a process takes of the machine's memory once it has imported torch."""
_STEADY_TOKENS = 32_768
"""More than any vocabulary of a real model lets into one chunk; toys may have a larger one."""
_WORKSPACES_BYTES = 64 * MIB
_SPARE_PERCENT = 7
"""Of what comes and goes: what the allocator keeps beyond it."""
_WIDTHS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_EVEN_RANK = 8
"""On a GPU ranks are filled up to a multiple of this."""


class MemoryLocation(StrEnum):
    """Whose memory it is."""

    CUDA = "cuda"
    CPU = "cpu"


@frozen
class MultiAdapterTraining:
    """Adapters that are trained at once over one base."""

    shape: ModelShape
    adapters: int = 1
    rank: int = 16
    """The largest of any member."""
    targets: tuple[str, ...] = (ALL_LINEAR,)
    """Of all members together."""
    rows: int = 1
    """Sequences of one member in one pass: the most of any."""
    sequence: int = 1024
    """Tokens of each: the longest of any."""
    dtype: Width = Width.BF16
    """Of the base, and what products are computed in."""
    where: MemoryLocation = MemoryLocation.CUDA
    is_compiled: bool = True
    is_synchronized: bool = True
    """All members are in every step; else one at a time, and activations are there once."""
    is_packed: bool = True
    """Several sequences may lie in one row: where data are packed, and on GPUs wherever that saves padding."""

    @property
    def tokens(self) -> int:
        """Of one member in one pass."""
        return self.rows * self.sequence

    @property
    def bank_rank(self) -> int:
        """What ranks are filled up to."""
        return -(-self.rank // _EVEN_RANK) * _EVEN_RANK if self.where is MemoryLocation.CUDA else self.rank

    @property
    def compiles(self) -> bool:
        """Kernels are compiled on GPUs alone."""
        return self.is_compiled and self.where is MemoryLocation.CUDA

    @property
    def passing(self) -> MemberActivations:
        """How one member's rows go through the base."""
        shape = self.shape
        # No kernel of CUDA's that holds no scores takes 32-bit floats where heads share keys.
        has_flash = self.where is MemoryLocation.CPU or self.dtype is not Width.FP32 or shape.kv_heads == shape.heads
        return MemberActivations(
            shape=shape,
            rank=self.bank_rank,
            targets=self.targets,
            tokens=self.tokens,
            sequence=self.sequence,
            dtype=self.dtype,
            is_compiled=self.compiles,
            is_packed=self.is_packed,
            has_flash=has_flash,
        )

    @property
    def kind(self) -> str:
        """Name everything but how much at a time: companies of one kind are wrong by the same factor, nearly."""
        compiled = "compiled" if self.compiles else "eager"
        turns = "together" if self.is_synchronized else "in-turn"
        packed = "" if self.is_packed else " unpacked"
        targets = ",".join(self.targets)
        return f"company {self.where} {self.dtype} {compiled} {turns}{packed} rank={self.rank} targets={targets}"

    @property
    def exact_kind(self) -> str:
        """Name it with how much each member has at a time."""
        return f"{self.kind} rows={self.rows} sequence={self.sequence}"


@frozen
class MultiAdapterNeeds:
    """What is charged once, and what each member adds."""

    base_bytes: int
    member_bytes: int

    @property
    def total_bytes(self) -> int:
        """What one member takes alone, its base with it."""
        return self.base_bytes + self.member_bytes


@frozen
class MultiAdapterEstimate:
    """What a company will take of one device, or of the machine's memory."""

    adapters: int
    base: tuple[EstimateTerm, ...]
    """Once, however many members there are."""
    member: tuple[EstimateTerm, ...]
    """For each of them."""
    parameters: int
    trained_parameters: int
    """Of one adapter."""
    measured_runs: int = 0

    @property
    def needs(self) -> MultiAdapterNeeds:
        return MultiAdapterNeeds(base_bytes=_sum(self.base), member_bytes=_sum(self.member))

    @property
    def total_bytes(self) -> int:
        """What all of them take together."""
        return self.needs.base_bytes + self.adapters * self.needs.member_bytes

    def to_dict(self) -> dict[str, Any]:
        needs = self.needs
        return {
            "total_bytes": self.total_bytes,
            "adapters": self.adapters,
            "base_bytes": needs.base_bytes,
            "member_bytes": needs.member_bytes,
            "base": [term.to_dict() for term in self.base],
            "member": [term.to_dict() for term in self.member],
            "parameters": self.parameters,
            "trained_parameters": self.trained_parameters,
            "measured_runs": self.measured_runs,
        }


def estimate_company(
    company: MultiAdapterTraining,
    *,
    context_bytes: int | None = None,
    gpu: str = "",
    correction: Correction | None = None,
) -> MultiAdapterEstimate:
    """Foretell what a company takes, term by term. `gpu` is the device's name: contexts differ.

    However many of its members there are by then, from one on, it is enough for them.
    """
    refuse_no_adapters(company.shape, company.targets)
    passing = company.passing
    base = [_weights(company), _process(company, context_bytes, gpu)]
    member = [_adapter(company)]
    once, each = _loss(company, passing, company.adapters), _loss(company, passing, 1)
    if _is_less_for_each(company, once, each):
        member.append(each)
    else:
        base.insert(1, once)
    (member if company.is_synchronized else base).extend(_step(company, passing))
    if correction is not None:
        member.append(calibration_term(member, correction))
    return MultiAdapterEstimate(
        adapters=company.adapters,
        base=tuple(base),
        member=tuple(member),
        parameters=company.shape.parameters,
        trained_parameters=adapter_parameters(company.shape, company.targets, company.rank),
        measured_runs=0 if correction is None else correction.runs,
    )


def steady_base_bytes(company: MultiAdapterTraining) -> int:
    """Return what is held once whatever members do at a time: with the loss of a whole chunk, as if nothing hid it.

    Members that are placed apart from each other agree on it, and so on having one base.
    """
    tokens = min(chunk_tokens(company.shape), _STEADY_TOKENS)
    chunk = loss_bytes(company.shape, company.dtype, tokens, is_compiled=company.compiles)
    return _weights(company).size_bytes + chunk + _process(company, None, "").size_bytes


def company_of_many(  # noqa: PLR0913 - what a recipe knows of one member
    shape: ModelShape,
    *,
    dtype: Width | str,
    rank: int,
    targets: tuple[str, ...],
    rows: int,
    sequence: int,
    where: MemoryLocation | str,
    is_compiled: bool = True,
    is_packed: bool = True,
    is_synchronized: bool = True,
) -> MultiAdapterTraining:
    """Return the company of members like this one; how many there will be is not known."""
    return MultiAdapterTraining(
        shape=shape,
        adapters=MANY,
        rank=rank,
        targets=targets,
        rows=rows,
        sequence=sequence,
        dtype=Width(_WIDTHS.get(str(dtype), str(dtype))),
        where=MemoryLocation(where),
        is_compiled=is_compiled,
        is_packed=is_packed,
        is_synchronized=is_synchronized,
    )


def _weights(company: MultiAdapterTraining) -> EstimateTerm:
    count = company.shape.parameters
    why = f"{count:,} parameters in {company.dtype}, frozen, once for all"
    return EstimateTerm("weights", count * company.dtype.bytes, why)


def _is_less_for_each(company: MultiAdapterTraining, once: EstimateTerm, each: EstimateTerm) -> bool:
    """Return whether the loss is better counted with each member than once for all: both are enough for any number.

    A chunk is larger than what all members of a toy's vocabulary bring, let alone one of them.
    """
    # On a GPU what is fitted was fitted to what is held once.
    may_be = company.where is MemoryLocation.CPU and company.is_synchronized
    return may_be and company.adapters * each.size_bytes < once.size_bytes


def _loss(company: MultiAdapterTraining, passing: MemberActivations, adapters: int) -> EstimateTerm:
    """Return the loss as far as it takes more than what has its turn after it: the backward pass of one member."""
    shape = company.shape
    tokens = company.tokens * (adapters if company.is_synchronized else 1)
    size_bytes = loss_bytes(shape, company.dtype, tokens, is_compiled=company.compiles)
    chunk = min(tokens, chunk_tokens(shape))
    why = f"{chunk:,} tokens at a time × {shape.vocabulary:,} words, never all logits"
    return EstimateTerm("loss", max(0, size_bytes - passing.working_bytes()), why)


def _adapter(company: MultiAdapterTraining) -> EstimateTerm:
    count = adapter_parameters(company.shape, company.targets, company.bank_rank)
    copy = "a copy" if company.dtype is Width.FP32 else f"a copy in {company.dtype}"
    why = f"{count:,} parameters in fp32, {copy}, two moments, gathered gradients"
    return EstimateTerm("adapter", state_bytes(count, company.dtype), why)


def _step(company: MultiAdapterTraining, passing: MemberActivations) -> list[EstimateTerm]:
    """Return what comes and goes in one step, at its fullest moment."""
    count = adapter_parameters(company.shape, company.targets, company.bank_rank)
    gradients, kept, working = count * company.dtype.bytes, passing.kept_bytes(), passing.working_bytes()
    updating = updating_bytes(count, company.dtype, is_compiled=company.compiles)
    said = f"{company.rows} × {company.sequence} tokens"
    if updating > gradients + kept + working:
        terms = [EstimateTerm("update", updating, f"more than {said} take before it")]
    else:
        terms = [
            EstimateTerm("activations", kept, f"what {company.shape.layers} layers keep of {said}"),
            EstimateTerm("backward", gradients + working, "gradients: one layer's inside, the adapter's"),
        ]
    if company.where is MemoryLocation.CPU:
        return terms
    why = f"what torch's allocator keeps beyond its tensors: {_SPARE_PERCENT} % of what comes and goes"
    spare = _sum(terms) * _SPARE_PERCENT // 100
    if company.compiles:
        why += ", and what a first compiled step leaves (fitted)"
        spare += first_step_bytes(count, company.dtype)
    return [*terms, EstimateTerm("fragmentation", spare, why)]


def _process(company: MultiAdapterTraining, context_bytes: int | None, gpu: str) -> EstimateTerm:
    if company.where is MemoryLocation.CPU:
        return EstimateTerm("process", IMPORTS_BYTES, "Python with torch imported")
    known, why = context_bytes_of(gpu) if context_bytes is None else (context_bytes, "CUDA context (as given)")
    return EstimateTerm("context", known + _WORKSPACES_BYTES, f"{why} and workspaces of products")


def _sum(terms: Iterable[EstimateTerm]) -> int:
    return sum(term.size_bytes for term in terms)


# From words such as `adapters=8` to a company: every fault at once.

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
    """Return whether words are of a company: they say how many adapters there are."""
    return any(word.partition("=")[0] == ADAPTERS for word in words)


def read_company(shape: ModelShape, words: Sequence[str]) -> MultiAdapterTraining:
    """Read a company over a model; `InvalidArgs` has everything that is wrong."""
    others = {name: _is_not_of_company for name in KEYS if name not in _READERS}
    said, faults = read_words(words, {**_READERS, **others})
    is_full = said.pop("method", Method.LORA) is Method.FULL
    if is_full:
        faults.append(Diagnostic("method", "full trains every weight, and a company trains adapters"))
    together = said.pop("turns", True)
    fields: dict[str, Any] = {_FIELDS.get(key, key): value for key, value in said.items()}
    if fields.get("where") is MemoryLocation.CPU:
        fields.setdefault("dtype", Width.FP32)
    company = MultiAdapterTraining(shape=shape, is_synchronized=together, **fields)
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
    "device": choice_of(MemoryLocation),
    "compiled": flag_of,
    "packed": flag_of,
    "turns": _turns,
}


# How many members of a company have room, and what would fit where not even one has. Pure.

STEP_TOKENS = 64
"""Between lengths that are worth a try."""
JOB_WORDS: Mapping[str, str] = {"adapters": "adapters", "rows": "batch", "sequence": "max_seq_len", "rank": "rank"}
"""What recipes call a company's numbers."""
_MOST_BASES = 3

Foretell = Callable[[MultiAdapterTraining], MultiAdapterEstimate]
"""Gives what a company takes, with whatever is known of the device it is for."""


@frozen
class MultiAdapterCapacity:
    """What one device, or the machine, has for a company."""

    name: str
    room_bytes: int
    why: str = ""
    """What else there is to know of it: how much of that is free now."""


@frozen
class SmallerOption:
    """Something that fits, and what it takes."""

    change: str
    """In the words of whoever asked: `batch=1 (instead of 4)`."""
    total_bytes: int

    def __str__(self) -> str:
        return f"{self.change} takes {format_size(self.total_bytes)}"


def at_once(free_bytes: int, company: MultiAdapterTraining, foretell: Foretell = estimate_company) -> int:
    """Return how many of a company's members fit together, none if not even one does."""
    needs = foretell(company).needs
    return seated(free_bytes, needs.base_bytes, repeat(needs.member_bytes, company.adapters))


def seated(free_bytes: int, base_bytes: int, members: Iterable[int]) -> int:
    """Return how many members, in order, fit together: each takes its own beside a base that is there once."""
    return sum(1 for _ in takewhile(lambda own_bytes: base_bytes + own_bytes <= free_bytes, accumulate(members)))


def smaller(
    room_bytes: int,
    company: MultiAdapterTraining,
    foretell: Foretell = estimate_company,
    words: Mapping[str, str] = JOB_WORDS,
) -> tuple[SmallerOption, ...]:
    """Return the changes, one number each, that would fit: the largest value of each number that does.

    Where no single one is enough, the same for one adapter alone; at last, the least of everything.
    """
    if foretell(company).total_bytes <= room_bytes:
        return ()
    for said, start in (("", company), (f"{words['adapters']}=1 ", changed(company, adapters=1))):
        found = [
            SmallerOption(
                change=f"{said}{words[field]}={value} (instead of {getattr(company, field)})", total_bytes=taken
            )
            for field, values in _smaller_values(start).items()
            for value, taken in largest_fit(room_bytes, values, _taking(start, foretell, field))
        ]
        if found:
            return tuple(found)
    least = {"adapters": 1, "rows": 1, "sequence": min(company.sequence, STEP_TOKENS), "rank": 1}
    taken = foretell(changed(company, **least)).total_bytes
    if taken > room_bytes:
        return ()
    said = " ".join(f"{words[field]}={value}" for field, value in least.items() if getattr(company, field) != value)
    return (SmallerOption(change=said, total_bytes=taken),)


def smaller_bases(
    room_bytes: int,
    company: MultiAdapterTraining,
    bases: Mapping[str, ModelShape],
    foretell: Foretell = estimate_company,
) -> tuple[SmallerOption, ...]:
    """Return the bases, the largest first, over which the same company would fit, if all it adapts is there."""

    def takes(name: str) -> int | None:
        adapted = targeted(bases[name], company.targets)
        if not adapted or company.rank > min(min(one.inputs, one.outputs) for one in adapted):
            return None
        return foretell(changed(company, shape=bases[name])).total_bytes

    return bases_that_fit(room_bytes, bases, takes)


def bases_that_fit(
    room_bytes: int, bases: Mapping[str, ModelShape], takes: Callable[[str], int | None]
) -> tuple[SmallerOption, ...]:
    """Return the largest of some bases with which something fits; `takes` says nothing of one that is no choice."""
    names = sorted(bases, key=lambda name: (-bases[name].parameters, name))
    fitting = ((name, taken) for name in names if (taken := takes(name)) is not None and taken <= room_bytes)
    return tuple(
        SmallerOption(change=f"base={name}", total_bytes=taken) for name, taken in islice(fitting, _MOST_BASES)
    )


def no_room(
    company: MultiAdapterTraining,
    rooms: Sequence[MultiAdapterCapacity],
    foretell: Foretell = estimate_company,
    words: Mapping[str, str] = JOB_WORDS,
    bases: Callable[[], Mapping[str, ModelShape]] = dict,
) -> InsufficientDeviceMemory | None:
    """Return the error for a company of which no device could ever hold even one member; nothing if one could.

    `bases` are others that are at hand, asked for only if nothing helps but another one.
    """
    alone = changed(company, adapters=1)
    told = foretell(alone)
    needs = told.needs
    numbers = (
        f"one adapter takes {format_size(told.total_bytes)}: {format_size(needs.base_bytes)} for the base and "
        f"{format_size(needs.member_bytes)} of its own"
    )

    def fitting(room_bytes: int) -> tuple[SmallerOption, ...]:
        found = smaller(room_bytes, alone, foretell, words)
        return found or smaller_bases(room_bytes, alone, bases(), foretell)

    return refusal(numbers, told.total_bytes, rooms, fitting, "even the base is too large: take a smaller one")


def refusal(
    numbers: str,
    needed_bytes: int,
    rooms: Sequence[MultiAdapterCapacity],
    fitting: Callable[[int], Sequence[SmallerOption]],
    otherwise: str,
) -> InsufficientDeviceMemory | None:
    """Return the error for work that none of these has room for; nothing if one has.

    `numbers` say what it takes, `fitting` what would fit into so much, and `otherwise` what to do if nothing would.
    """
    largest = max(rooms, key=lambda one: one.room_bytes, default=None)
    if largest is None:
        return InsufficientDeviceMemory(f"{numbers}, and there is no device", hint="stoker doctor shows what is here")
    if needed_bytes <= largest.room_bytes:
        return None
    has = f"{largest.name} has {format_size(largest.room_bytes)}{f' ({largest.why})' if largest.why else ''}"
    found = fitting(largest.room_bytes)
    hint = f"would fit: {'; '.join(map(str, found))}" if found else otherwise
    most = "" if len(rooms) == 1 else ", the most of any"
    return InsufficientDeviceMemory(
        f"{numbers}; {has}{most}", hint=hint, needed_bytes=needed_bytes, devices=[one.name for one in rooms]
    )


def largest_fit(room_bytes: int, values: Sequence[int], takes: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Return the largest of some values, in order, with which something fits, and what it takes then."""
    place = bisect_right(values, room_bytes, key=takes)
    if place:
        yield values[place - 1], takes(values[place - 1])


def fewer_tokens(tokens: int) -> Sequence[int]:
    """Return the shorter lengths that are worth a try."""
    return range(STEP_TOKENS, tokens, STEP_TOKENS)


def _smaller_values(company: MultiAdapterTraining) -> dict[str, Sequence[int]]:
    return {
        "adapters": range(1, company.adapters),
        "rows": range(1, company.rows),
        "sequence": fewer_tokens(company.sequence),
        "rank": [2**power for power in range(company.rank.bit_length()) if 2**power < company.rank],
    }


def _taking(company: MultiAdapterTraining, foretell: Foretell, field: str) -> Callable[[int], int]:
    """Return what a company takes with another value of one of its numbers."""
    return lambda value: foretell(changed(company, **{field: value})).total_bytes
