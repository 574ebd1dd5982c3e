"""Memory of several adapters over one frozen base: the base is held once, and every member adds its own.

Banks and rows are padded to the largest member, so all members take the same, and K of them take
`base_bytes + K * member_bytes`. That is what the ledger charges: the base once, then increments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from stoker.core.errors import Diagnostic
from stoker.core.frozen import frozen
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
# It keeps no graph of autograd's: of each block the input, rotated queries, keys and values with the output of
# attention, the input of the second half, gate and up, and the narrow products of adapters. Norms and gates are
# recomputed. Without compiled kernels, element-wise operations make copies of their own, mostly in 32 bits.

CHUNK_BYTES = 512 * 1024**2
"""Size limit of the logits, in 32 bits, of the tokens whose losses are computed at a time."""
_FLOAT = 4
_INT = 8


def loss_bytes(shape: ModelShape, dtype: Width, tokens: int, *, is_compiled: bool, is_general: bool = False) -> int:
    """Return what one chunk of the loss holds, of that many tokens or fewer."""
    words = min(tokens, chunk_tokens(shape)) * shape.vocabulary
    if is_general:
        # Logits, and by autograd in 32 bits: log-softmax, its gradient and theirs. On a CPU 12 bytes were measured.
        return words * (dtype.bytes + 3 * _FLOAT)
    if is_compiled:
        # Logits, in whose place is their gradient; those of the next chunk are there before it is freed.
        return words * (1 if tokens <= chunk_tokens(shape) else 2) * dtype.bytes
    # Those in 32 bits, where they are not already; where the label is; softmax, labels and difference on their way.
    wide = 0 if dtype is Width.FP32 else _FLOAT
    return words * (dtype.bytes + wide + 1 + 3 * _FLOAT)


def chunk_tokens(shape: ModelShape) -> int:
    """Return the maximum number of tokens whose logits are held at a time."""
    return max(1, CHUNK_BYTES // (_FLOAT * shape.vocabulary))


def state_bytes(count: int, dtype: Width) -> int:
    """Return what an adapter of so many parameters always holds: itself, two moments, gathered gradients, a copy."""
    return count * (4 * _FLOAT + dtype.bytes)


def first_step_bytes(count: int, dtype: Width) -> int:
    """Return what the allocator holds beyond its tensors after the first compiled step, for each of so many parameters.

    Fitted, not counted: on an H200 it was 4 to 16 bytes per parameter, most where kernels were compiled for the first
    time. Its cause is not known.
    """
    return count * (3 * _FLOAT + dtype.bytes) * 2 // 3


def updating_bytes(count: int, dtype: Width, *, is_compiled: bool) -> int:
    """Return what its update makes beside that: gradients, their sums, and copies of the larger half."""
    copies = 0 if is_compiled else 6
    return count * (dtype.bytes + _FLOAT) + copies * _FLOAT * count * 3 // 5


MIB = 1024**2
MANY = 32
"""The number of members that is assumed while it is not known."""
IMPORTS_BYTES = 512 * MIB
"""What a process takes of the machine's memory once it has imported torch."""
_STEADY_TOKENS = 32_768
"""More than any vocabulary of a real model lets into one chunk; toys may have a larger one."""
_WORKSPACES_BYTES = 64 * MIB
_SPARE_PERCENT = 7
"""Of temporary memory: what the allocator keeps beyond it."""
_EVEN_RANK = 8
"""On a GPU ranks are padded to a multiple of this."""


class BaseWidth(StrEnum):
    """How a base is kept."""

    AUTO = "auto"
    """As it is computed with."""
    NF4 = "nf4"
    """In four bits: matrices of blocks; a block at a time is dequantised."""
    INT8 = "int8"
    """The same in eight bits."""


class MemoryLocation(StrEnum):
    """Device memory or the machine's."""

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
    """Of the base and of products."""
    base_dtype: BaseWidth = BaseWidth.AUTO
    """Of the base, if another."""
    has_wide_scales: bool = False
    """A base in four bits has magnitudes in 32 bits: it was saved without double quantisation."""
    where: MemoryLocation = MemoryLocation.CUDA
    is_compiled: bool = True
    is_synchronized: bool = True
    """All members are in every step; otherwise one at a time, and activations are held once."""
    is_general: bool = False
    """The base is computed by transformers' module, with gradients by autograd."""
    is_packed: bool = True
    """Several sequences may be in one row: if data are packed, and on GPUs wherever that saves padding."""
    is_paired: bool = False
    """Each row is two: the chosen and the rejected side of a pair."""
    dora: bool = False
    """Adapters have a magnitude for each output of a matrix."""
    whole: int = 0
    """Number of modules, embedding and head, of which each member trains a copy of its own."""

    @property
    def tokens(self) -> int:
        """Of one member in one pass."""
        return self.rows * self.sequence * (2 if self.is_paired else 1)

    @property
    def bank_rank(self) -> int:
        """The padded rank."""
        return -(-self.rank // _EVEN_RANK) * _EVEN_RANK if self.where is MemoryLocation.CUDA else self.rank

    def trained(self, rank: int) -> int:
        """Count the parameters of one adapter of a rank."""
        magnitudes = self.shape.layers * sum(one.outputs for one in targeted(self.shape, self.targets))
        return adapter_parameters(self.shape, self.targets, rank) + (magnitudes if self.dora else 0) + self.copied

    @property
    def copied(self) -> int:
        """Parameters of the modules that one member trains whole."""
        return self.whole * self.shape.vocabulary * self.shape.hidden

    @property
    def compiles(self) -> bool:
        """True if kernels are compiled: on GPUs alone."""
        return self.is_compiled and self.where is MemoryLocation.CUDA

    @property
    def has_embedding_in_ram(self) -> bool:
        """True if the embedding of a quantised base is not on the device: it is read from there, a row per token."""
        is_quantised = self.base_dtype is not BaseWidth.AUTO
        return is_quantised and self.compiles and not self.is_general and not self.shape.is_tied

    def loss_bytes(self, tokens: int) -> int:
        """Return what one chunk of the loss holds, of that many tokens or fewer."""
        return loss_bytes(self.shape, self.dtype, tokens, is_compiled=self.compiles, is_general=self.is_general)

    @property
    def _has_flash(self) -> bool:
        """True if attention never holds its scores."""
        # No kernel of CUDA's that holds no scores takes 32-bit floats where heads share keys.
        return self.where is MemoryLocation.CPU or self.dtype is not Width.FP32 or not self._has_groups

    @property
    def _has_groups(self) -> bool:
        return self.shape.kv_heads != self.shape.heads

    def kept_bytes(self) -> int:
        """Return what all blocks keep of one member until the backward pass, with first input and last output."""
        shape, qkv = self.shape, self.shape.q_width + 2 * self.shape.kv_width
        narrow = self.bank_rank * len(targeted(shape, self.targets))
        kept = 2 * shape.hidden + qkv + shape.q_width + 2 * shape.inner + narrow
        if self.is_general:
            kept += self._autograd_numbers(qkv)
        if shape.has_head_norms:
            kept += qkv
        if self.dora:
            # What is multiplied by factors; all matrices with one input are, if one of them has an adapter.
            kept += sum(one.outputs for one in shape.linears)
        block = kept * self.dtype.bytes + self._attention_bytes()
        # The last block's result, its norm, and the gradient of that; angles of positions; ids and labels.
        ends = 3 * shape.hidden * self.dtype.bytes + shape.head_dim * _FLOAT + 2 * _INT
        return self.tokens * (shape.layers * block + ends)

    def _autograd_numbers(self, qkv: int) -> int:
        """Return what autograd keeps of one token in one block beyond that, in numbers of the base's precision.

        Both norms with their result, in 32 bits too; queries, keys and values before and after their rotation; two
        more results of the activation. Not counted op by op: families differ. With small bases of twelve families,
        autograd kept 0.46 to 1.02 of the whole estimate.
        """
        return 2 * self.shape.hidden * (2 + _FLOAT // self.dtype.bytes) + 2 * qkv + 2 * self.shape.inner

    def _attention_bytes(self) -> int:
        """Return what attention keeps of one token in one block, beyond its input and output."""
        shape = self.shape
        if self.is_general and shape.holds_scores:
            # Scores before and after softmax, also in 32 bits, keys and values for every head.
            return shape.heads * self.sequence * 2 * (self.dtype.bytes + _FLOAT) + 2 * shape.q_width * self.dtype.bytes
        if not self._has_flash:
            # Scores before and after softmax, keys and values for every head.
            return shape.heads * self.sequence * 2 * self.dtype.bytes + 2 * shape.q_width * self.dtype.bytes
        sums = shape.heads * _FLOAT
        return sums + (self._packed_bytes() if self.is_packed else 0)

    def _packed_bytes(self) -> int:
        if self.dtype is Width.FP32:
            # A mask of every row, as 32-bit floats.
            return self.sequence * _FLOAT
        # Keys and values for every head.
        return 2 * self.shape.q_width * self.dtype.bytes

    def working_bytes(self) -> int:
        """Return what one block's backward pass has beyond that, at its peak."""
        return self.tokens * max(self._gate_bytes(), self._rest_bytes())

    def _gate_bytes(self) -> int:
        """During the backward pass of the gate: the incoming gradient, its output, and three results."""
        inner = self.shape.inner
        # With magnitudes also the gradients of what factors multiply, and a product for those of the factors.
        held = (self.shape.hidden + (7 if self.dora else 4) * inner) * self.dtype.bytes
        if self.compiles:
            return held
        # In 32 bits: gate, up and the gradient (there already if the base is), sigma, silu, and products on their way.
        copies = 4 if self.dtype is Width.FP32 else 8
        return held + copies * inner * _FLOAT

    def _rest_bytes(self) -> int:
        """During the backward pass of attention."""
        shape, width = self.shape, self.dtype.bytes
        qkv = shape.q_width + 2 * shape.kv_width
        left = (4 * shape.hidden + shape.q_width) * width
        # Gradients of queries, keys and values, joined; the kernel's own sums in 32 bits, and keys for every head.
        attention = 2 * qkv * width + shape.q_width * _FLOAT
        if self._has_groups:
            attention += 2 * shape.q_width * width
        if not self._has_flash:
            attention += 2 * shape.heads * self.sequence * width
        return left + attention

    @property
    def kind(self) -> str:
        """Name everything but the amount of data: estimates of one kind are wrong by nearly the same factor."""
        compiled = "compiled" if self.compiles else "eager"
        turns = "together" if self.is_synchronized else "in-turn"
        packed = "" if self.is_packed else " unpacked"
        targets = ",".join(self.targets)
        packed += " general" if self.is_general else ""
        base = "" if self.base_dtype is BaseWidth.AUTO else f" {self.base_dtype}"
        pairs = " pairs" if self.is_paired else ""
        pairs += " dora" if self.dora else ""
        pairs += f" whole={self.whole}" if self.whole else ""
        how = f"{compiled} {turns}{packed}{pairs}"
        return f"company {self.where} {self.dtype}{base} {how} rank={self.rank} targets={targets}"

    @property
    def exact_kind(self) -> str:
        """Name it with the amount of data of each member."""
        return f"{self.kind} rows={self.rows} sequence={self.sequence}"


@frozen
class MultiAdapterNeeds:
    """What is charged once, and what each member adds."""

    base_bytes: int
    member_bytes: int
    state_bytes: int = 0
    """The part of `member_bytes` that a member always holds; the rest only while its rows are computed."""
    pass_bytes: int = 0
    """What a member takes beside its state in a pass of some of the members. Zero: a pass always has all of them."""

    @property
    def total_bytes(self) -> int:
        """What one member takes alone, its base with it."""
        return self.base_bytes + self.member_bytes


@frozen
class MultiAdapterEstimate:
    """Memory of several adapters on one device, or in the machine."""

    adapters: int
    base: tuple[EstimateTerm, ...]
    """Once, for any number of members."""
    member: tuple[EstimateTerm, ...]
    """For each of them."""
    parameters: int
    trained_parameters: int
    """Of one adapter."""
    measured_runs: int = 0
    state_bytes: int = 0
    pass_bytes: int = 0
    """Both as in `MultiAdapterNeeds`."""

    @property
    def needs(self) -> MultiAdapterNeeds:
        return MultiAdapterNeeds(
            base_bytes=_sum(self.base),
            member_bytes=_sum(self.member),
            state_bytes=self.state_bytes,
            pass_bytes=self.pass_bytes,
        )

    @property
    def total_bytes(self) -> int:
        """For all members together."""
        return self.needs.base_bytes + self.adapters * self.needs.member_bytes

    def to_dict(self) -> dict[str, Any]:
        needs = self.needs
        return {
            "total_bytes": self.total_bytes,
            "adapters": self.adapters,
            "base_bytes": needs.base_bytes,
            "member_bytes": needs.member_bytes,
            "state_bytes": needs.state_bytes,
            "pass_bytes": needs.pass_bytes,
            "base": [term.to_dict() for term in self.base],
            "member": [term.to_dict() for term in self.member],
            "parameters": self.parameters,
            "trained_parameters": self.trained_parameters,
            "measured_runs": self.measured_runs,
        }


def estimate_adapters(
    training: MultiAdapterTraining,
    *,
    context_bytes: int | None = None,
    gpu: str = "",
    correction: Correction | None = None,
) -> MultiAdapterEstimate:
    """Estimate the memory of several adapters, term by term. `gpu` is the device's name: contexts differ.

    The estimate is enough for any number of members from one on.
    """
    refuse_no_adapters(training.shape, training.targets)
    base = [_weights(training), _process(training, context_bytes, gpu)]
    member = [_adapter(training)]
    once, each = _loss(training, training.adapters), _loss(training, 1)
    is_each = _is_less_for_each(training, once, each)
    if is_each:
        member.append(each)
    else:
        base.insert(1, once)
    (member if training.is_synchronized else base).extend(_step(training))
    percent = 100.0
    if correction is not None:
        member.append(calibration_term(member, correction))
        percent = correction.percent
    state_bytes, pass_bytes = _state_and_pass_bytes(training, each.size_bytes if is_each else 0)
    return MultiAdapterEstimate(
        adapters=training.adapters,
        base=tuple(base),
        member=tuple(member),
        parameters=training.shape.parameters,
        trained_parameters=training.trained(training.rank),
        measured_runs=0 if correction is None else correction.runs,
        state_bytes=round(state_bytes * percent / 100),
        pass_bytes=round(pass_bytes * percent / 100),
    )


def steady_base_bytes(training: MultiAdapterTraining) -> int:
    """Return what is held once, whatever members do: with the loss of a whole chunk.

    Members that are placed independently agree on it, and so on having one base.
    """
    tokens = min(chunk_tokens(training.shape) + 1, _STEADY_TOKENS)
    chunk = training.loss_bytes(tokens)
    return _weights(training).size_bytes + chunk + _process(training, None, "").size_bytes


def _weights(training: MultiAdapterTraining) -> EstimateTerm:
    shape, width = training.shape, training.dtype
    count = shape.parameters
    if training.base_dtype is BaseWidth.AUTO:
        why = f"{count:,} parameters in {width}, frozen, once for all"
        return EstimateTerm("weights", count * width.bytes, why)
    block = sum(one.inputs * one.outputs for one in shape.linears)
    quantised = shape.layers * block
    is_four = training.base_dtype is BaseWidth.NF4
    bits = "four" if is_four else "eight"
    why = f"{quantised:,} of {count:,} parameters in {bits} bits, the rest and one block in {width}, once for all"
    if training.has_embedding_in_ram:
        count -= shape.vocabulary * shape.hidden
        why = f"{why}; the embedding is in the machine's memory"
    # In eight bits a row has four more bytes.
    rows = shape.layers * sum(one.outputs for one in shape.linears)
    packed = nf4_bytes(quantised, has_wide_scales=training.has_wide_scales) if is_four else quantised + 4 * rows
    return EstimateTerm("weights", packed + (count - quantised + block) * width.bytes, why)


def nf4_bytes(count: int, *, has_wide_scales: bool = False) -> int:
    """Return what so many weights take in four bits: with a byte for each 64, and four for each 256 of these.

    With wide scales it is four bytes for each 64.
    """
    scales = 4 * (count // 64) if has_wide_scales else count // 64 + 4 * -(-count // (64 * 256))
    return count // 2 + scales


def _is_less_for_each(training: MultiAdapterTraining, once: EstimateTerm, each: EstimateTerm) -> bool:
    """Return True if the loss is better counted with each member than once for all: both are enough for any number.

    A chunk is larger than what all members of a toy's vocabulary take, let alone one of them.
    """
    # On a GPU the fitted part was fitted to what is held once.
    may_be = training.where is MemoryLocation.CPU and training.is_synchronized
    return may_be and training.adapters * each.size_bytes < once.size_bytes


def _loss(training: MultiAdapterTraining, adapters: int) -> EstimateTerm:
    """Return the loss as far as it exceeds what follows it: the backward pass of one member."""
    shape = training.shape
    tokens = training.tokens * (adapters if training.is_synchronized else 1)
    size_bytes = training.loss_bytes(tokens)
    chunk = min(tokens, chunk_tokens(shape))
    why = f"{chunk:,} tokens at a time × {shape.vocabulary:,} words, never all logits"
    return EstimateTerm("loss", max(0, size_bytes - training.working_bytes()), why)


def _adapter(training: MultiAdapterTraining) -> EstimateTerm:
    count = training.trained(training.bank_rank)
    copy = "a copy" if training.dtype is Width.FP32 else f"a copy in {training.dtype}"
    why = f"{count:,} parameters in fp32, {copy}, two moments, gathered gradients"
    # Of adapters, the best ones and those that are written take next to nothing.
    kept = 2 * _FLOAT * training.copied if training.where is MemoryLocation.CPU else 0
    return EstimateTerm("adapter", state_bytes(count, training.dtype) + kept, why)


@frozen
class _StepBytes:
    """Temporary memory of one step of one member."""

    gradients: int
    kept: int
    working: int
    updating: int

    @property
    def passing(self) -> int:
        """During the backward pass."""
        return self.gradients + self.kept + self.working


def _step_bytes(training: MultiAdapterTraining) -> _StepBytes:
    count = training.trained(training.bank_rank)
    gradients = count * training.dtype.bytes
    updating = updating_bytes(count - training.copied, training.dtype, is_compiled=training.compiles)
    # Gradients of modules are in 32 bits, and one at a time is added to them; one at a time is updated.
    one = training.copied // max(1, training.whole)
    gradients += training.copied * (_FLOAT - training.dtype.bytes) + one * _FLOAT
    updating += 2 * _FLOAT * training.copied + (0 if training.compiles else 6 * _FLOAT * one)
    return _StepBytes(
        gradients=gradients, kept=training.kept_bytes(), working=training.working_bytes(), updating=updating
    )


def _step(training: MultiAdapterTraining) -> list[EstimateTerm]:
    """Return the temporary memory of one step, at its peak."""
    found = _step_bytes(training)
    data = f"{training.tokens // training.sequence} × {training.sequence} tokens"
    if found.updating > found.passing:
        terms = [EstimateTerm("update", found.updating, f"more than {data} take before it")]
    else:
        backward = found.gradients + found.working
        terms = [
            EstimateTerm("activations", found.kept, f"what {training.shape.layers} layers keep of {data}"),
            EstimateTerm("backward", backward, "gradients: one layer's inside, the adapter's"),
        ]
    if training.where is MemoryLocation.CPU:
        return terms
    why = f"what torch's allocator keeps beyond its tensors: {_SPARE_PERCENT} % of temporary memory"
    spare = _sum(terms) * _SPARE_PERCENT // 100
    if training.compiles:
        why += ", and what a first compiled step leaves (fitted)"
        spare += _left_bytes(training)
    return [*terms, EstimateTerm("fragmentation", spare, why)]


def _left_bytes(training: MultiAdapterTraining) -> int:
    """Return what a first compiled step leaves in the allocator."""
    return first_step_bytes(training.trained(training.bank_rank) - training.copied, training.dtype)


def _state_and_pass_bytes(training: MultiAdapterTraining, loss_bytes: int) -> tuple[int, int]:
    """Return what a member always holds, and what it takes in a pass of some members, its own loss with it.

    Of some of the members a pass computes with copies: of the adapter's weights, and while the larger half of them is
    updated, of that half with its moments.
    """
    if not training.is_synchronized:
        return 0, 0
    found, count = _step_bytes(training), training.trained(training.bank_rank) - training.copied
    weights, moved = count * training.dtype.bytes, (3 * _FLOAT + training.dtype.bytes) * count * 3 // 5
    taken = max(found.passing + weights, found.updating + moved)
    if training.where is MemoryLocation.CUDA:
        taken += taken * _SPARE_PERCENT // 100
    return _adapter(training).size_bytes + (_left_bytes(training) if training.compiles else 0), loss_bytes + taken


def _process(training: MultiAdapterTraining, context_bytes: int | None, gpu: str) -> EstimateTerm:
    if training.where is MemoryLocation.CPU:
        return EstimateTerm("process", IMPORTS_BYTES, "Python with torch imported")
    known, why = context_bytes_of(gpu) if context_bytes is None else (context_bytes, "CUDA context (as given)")
    return EstimateTerm("context", known + _WORKSPACES_BYTES, f"{why} and workspaces of products")


def _sum(terms: Iterable[EstimateTerm]) -> int:
    return sum(term.size_bytes for term in terms)


# From options such as `adapters=8` to a training of several adapters: every fault at once.

ADAPTERS = "adapters"
ADAPTER_KEYS: Mapping[str, str] = {
    ADAPTERS: "number trained at once over one base, by language/lora; then only the keys below and method, "
    "batch, sequence, dtype, rank and targets have an effect",
    "base_dtype": "nf4 for a base in four bits, int8 in eight",
    "device": "cuda, or cpu for the machine's own memory",
    "compiled": "false if kernels are not compiled",
    "packed": "false if two sequences are never in one row",
    "pairs": "true if rows are pairs of answers (method=dpo, orpo of the recipe): two rows each",
    "dora": "true if adapters have magnitudes",
    "modules_to_save": "embedding and head that are trained whole beside each, such as embed_tokens,lm_head",
    "turns": "together, or one if each step has one adapter",
}
"""Options of several adapters beside those of a training."""
WORDS: Mapping[str, str] = {ADAPTERS: ADAPTERS, "rows": "batch", "sequence": "sequence", "rank": "rank"}
"""Names of its numbers here."""
_FIELDS = {
    "batch": "rows", "device": "where", "compiled": "is_compiled", "packed": "is_packed", "pairs": "is_paired",
    "modules_to_save": "whole",
}  # fmt: skip
_TURNS = {"together": True, "one": False}


def has_adapters(words: Sequence[str]) -> bool:
    """Return True if options are of several adapters: they contain their number."""
    return any(word.partition("=")[0] == ADAPTERS for word in words)


def read_adapters(shape: ModelShape, words: Sequence[str]) -> MultiAdapterTraining:
    """Read a training of several adapters over a model; `InvalidArgs` has all faults."""
    others = {name: _no_effect for name in KEYS if name not in _READERS}
    values, faults = read_words(words, {**_READERS, **others})
    is_full = values.pop("method", Method.LORA) is Method.FULL
    if is_full:
        faults.append(Diagnostic("method", "full trains every weight; adapters=N trains adapters"))
    together = values.pop("turns", True)
    fields: dict[str, Any] = {_FIELDS.get(key, key): value for key, value in values.items()}
    if fields.get("where") is MemoryLocation.CPU:
        fields.setdefault("dtype", Width.FP32)
    training = MultiAdapterTraining(shape=shape, is_synchronized=together, **fields)
    faults += position_faults(shape, training.sequence)
    faults += target_faults(shape, training.targets)
    refuse(faults, "the options of the adapters")
    return training


def _turns(text: str) -> bool:
    if text.lower() not in _TURNS:
        message = f"{text!r} is none of {', '.join(_TURNS)}"
        raise ValueError(message)
    return _TURNS[text.lower()]


def _no_effect(_: str) -> None:
    message = "has no effect with adapters=N: leave it out"
    raise ValueError(message)


_READERS: Readers = {
    ADAPTERS: count_from(1),
    "method": choice_of(Method),
    "batch": count_from(1),
    "sequence": count_from(1),
    "dtype": choice_of(Width, Width.FP16),
    "base_dtype": choice_of(BaseWidth),
    "rank": count_from(1),
    "targets": names_in,
    "device": choice_of(MemoryLocation),
    "compiled": flag_of,
    "packed": flag_of,
    "pairs": flag_of,
    "dora": flag_of,
    "modules_to_save": lambda text: len(names_in(text)),
    "turns": _turns,
}
