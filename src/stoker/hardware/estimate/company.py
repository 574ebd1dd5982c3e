"""A company of adapters as its memory sees it: one frozen base, held once, and what every member adds.

Banks and rows are padded to the largest member, so all members of a company take the same, and a company of K takes
`base_bytes + K * member_bytes`. That is what the ledger charges: the base once, then increments.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from stoker.hardware.estimate.company_activations import (
    Passing,
    chunk_tokens,
    first_step_bytes,
    loss_bytes,
    state_bytes,
    updating_bytes,
)
from stoker.hardware.estimate.shape import ModelShape
from stoker.hardware.estimate.targets import adapter_parameters
from stoker.hardware.estimate.terms import (
    Correction,
    Term,
    calibration_term,
    context_bytes_of,
    refuse_no_adapters,
)
from stoker.hardware.estimate.training import ALL_LINEAR, Width
from stoker.model.frozen import frozen

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


class Where(StrEnum):
    """Whose memory it is."""

    CUDA = "cuda"
    CPU = "cpu"


@frozen
class Company:
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
    where: Where = Where.CUDA
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
        return -(-self.rank // _EVEN_RANK) * _EVEN_RANK if self.where is Where.CUDA else self.rank

    @property
    def compiles(self) -> bool:
        """Kernels are compiled on GPUs alone."""
        return self.is_compiled and self.where is Where.CUDA

    @property
    def passing(self) -> Passing:
        """How one member's rows go through the base."""
        shape = self.shape
        # No kernel of CUDA's that holds no scores takes 32-bit floats where heads share keys.
        has_flash = self.where is Where.CPU or self.dtype is not Width.FP32 or shape.kv_heads == shape.heads
        return Passing(
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
class CompanyNeeds:
    """What is charged once, and what each member adds."""

    base_bytes: int
    member_bytes: int

    @property
    def total_bytes(self) -> int:
        """What one member takes alone, its base with it."""
        return self.base_bytes + self.member_bytes


@frozen
class CompanyEstimate:
    """What a company will take of one device, or of the machine's memory."""

    adapters: int
    base: tuple[Term, ...]
    """Once, however many members there are."""
    member: tuple[Term, ...]
    """For each of them."""
    parameters: int
    trained_parameters: int
    """Of one adapter."""
    measured_runs: int = 0

    @property
    def needs(self) -> CompanyNeeds:
        return CompanyNeeds(base_bytes=_sum(self.base), member_bytes=_sum(self.member))

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
    company: Company, *, context_bytes: int | None = None, gpu: str = "", correction: Correction | None = None
) -> CompanyEstimate:
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
    return CompanyEstimate(
        adapters=company.adapters,
        base=tuple(base),
        member=tuple(member),
        parameters=company.shape.parameters,
        trained_parameters=adapter_parameters(company.shape, company.targets, company.rank),
        measured_runs=0 if correction is None else correction.runs,
    )


def steady_base_bytes(company: Company) -> int:
    """Give what is held once whatever members do at a time: with the loss of a whole chunk, as if nothing hid it.

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
    where: Where | str,
    is_compiled: bool = True,
    is_packed: bool = True,
    is_synchronized: bool = True,
) -> Company:
    """Give the company of members like this one; how many there will be is not known."""
    return Company(
        shape=shape,
        adapters=MANY,
        rank=rank,
        targets=targets,
        rows=rows,
        sequence=sequence,
        dtype=Width(_WIDTHS.get(str(dtype), str(dtype))),
        where=Where(where),
        is_compiled=is_compiled,
        is_packed=is_packed,
        is_synchronized=is_synchronized,
    )


def _weights(company: Company) -> Term:
    count = company.shape.parameters
    why = f"{count:,} parameters in {company.dtype}, frozen, once for all"
    return Term(name="weights", size_bytes=count * company.dtype.bytes, why=why)


def _is_less_for_each(company: Company, once: Term, each: Term) -> bool:
    """Say whether the loss is better counted with each member than once for all: both are enough for any number.

    A chunk is larger than what all members of a toy's vocabulary bring, let alone one of them.
    """
    # On a GPU what is fitted was fitted to what is held once.
    may_be = company.where is Where.CPU and company.is_synchronized
    return may_be and company.adapters * each.size_bytes < once.size_bytes


def _loss(company: Company, passing: Passing, adapters: int) -> Term:
    """Give the loss as far as it takes more than what has its turn after it: the backward pass of one member."""
    shape = company.shape
    tokens = company.tokens * (adapters if company.is_synchronized else 1)
    size_bytes = loss_bytes(shape, company.dtype, tokens, is_compiled=company.compiles)
    chunk = min(tokens, chunk_tokens(shape))
    why = f"{chunk:,} tokens at a time × {shape.vocabulary:,} words, never all logits"
    return Term(name="loss", size_bytes=max(0, size_bytes - passing.working_bytes()), why=why)


def _adapter(company: Company) -> Term:
    count = adapter_parameters(company.shape, company.targets, company.bank_rank)
    copy = "a copy" if company.dtype is Width.FP32 else f"a copy in {company.dtype}"
    why = f"{count:,} parameters in fp32, {copy}, two moments, gathered gradients"
    return Term(name="adapter", size_bytes=state_bytes(count, company.dtype), why=why)


def _step(company: Company, passing: Passing) -> list[Term]:
    """Give what comes and goes in one step, at its fullest moment."""
    count = adapter_parameters(company.shape, company.targets, company.bank_rank)
    gradients, kept, working = count * company.dtype.bytes, passing.kept_bytes(), passing.working_bytes()
    updating = updating_bytes(count, company.dtype, is_compiled=company.compiles)
    said = f"{company.rows} × {company.sequence} tokens"
    if updating > gradients + kept + working:
        terms = [Term(name="update", size_bytes=updating, why=f"more than {said} take before it")]
    else:
        terms = [
            Term(name="activations", size_bytes=kept, why=f"what {company.shape.layers} layers keep of {said}"),
            Term(name="backward", size_bytes=gradients + working, why="gradients: one layer's inside, the adapter's"),
        ]
    if company.where is Where.CPU:
        return terms
    why = f"what torch's allocator keeps beyond its tensors: {_SPARE_PERCENT} % of what comes and goes"
    spare = _sum(terms) * _SPARE_PERCENT // 100
    if company.compiles:
        why += ", and what a first compiled step leaves (fitted)"
        spare += first_step_bytes(count, company.dtype)
    return [*terms, Term(name="fragmentation", size_bytes=spare, why=why)]


def _process(company: Company, context_bytes: int | None, gpu: str) -> Term:
    if company.where is Where.CPU:
        return Term(name="process", size_bytes=IMPORTS_BYTES, why="Python with torch imported")
    known, why = context_bytes_of(gpu) if context_bytes is None else (context_bytes, "CUDA context (as given)")
    return Term(name="context", size_bytes=known + _WORKSPACES_BYTES, why=f"{why} and workspaces of products")


def _sum(terms: Iterable[Term]) -> int:
    return sum(term.size_bytes for term in terms)
