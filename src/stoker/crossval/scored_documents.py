"""Documents that models have scored: read, and decided as one perplexity, document by document."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stoker.core.errors import BadInput, LocalFile, NotVerified
from stoker.core.frozen import changed, frozen
from stoker.core.jsontext import MOST_WHOLE, loads_strict
from stoker.core.text import counted, first_line
from stoker.crossval.gate_rule import (
    Document,
    GateLimit,
    GateRule,
    MetricVerdict,
    decide_metrics,
    weigh_documents,
)
from stoker.host.durable import read_regular

PERPLEXITY = "perplexity"
_MOST_BYTES = 256 << 20


@frozen
class DocumentScore:
    """The negative log-likelihood of one document under a model, in nats, summed over its predicted tokens."""

    name: str
    tokens: int
    nll: float


def decide_documents(
    baseline: Sequence[DocumentScore], candidate: Sequence[DocumentScore], limit: GateLimit, rule: GateRule
) -> list[MetricVerdict]:
    """Decide a perplexity over the same documents. Raises `NotVerified` if the sides do not count the same tokens."""
    theirs = {one.name: one for one in candidate}
    ours = {one.name: one for one in baseline}
    if len(ours) != len(baseline) or len(theirs) != len(candidate):
        raise BadInput("two documents have the same name", hint="names of documents have to differ")
    if missing := sorted(set(ours) ^ set(theirs)):
        raise BadInput(
            f"document {missing[0]!r} is on one side only ({counted(len(missing), 'document')} in all)",
            hint="score the same documents on both sides",
        )
    documents = [
        Document(name=name, tokens=one.tokens, baseline_nll=one.nll, candidate_nll=theirs[name].nll)
        for name, one in ours.items()
    ]
    if other := [name for name, one in ours.items() if one.tokens != theirs[name].tokens]:
        raise NotVerified(
            f"document {other[0]!r} has {ours[other[0]].tokens} tokens on one side and {theirs[other[0]].tokens} on "
            "the other: the tokenizers disagree",
            hint="perplexities per token can't be compared then",
        )
    one = weigh_documents(limit, documents, rule)
    verdict = decide_metrics({limit.metric: one}, [limit], rule)[limit.metric]
    tokens = sum(document.tokens for document in documents)
    return [
        changed(
            verdict,
            baseline=_perplexity(sum(document.baseline_nll for document in documents) / tokens),
            candidate=_perplexity(sum(document.candidate_nll for document in documents) / tokens),
        )
    ]


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700.0 else math.inf


def read_documents(path: str) -> tuple[DocumentScore, ...]:
    """Read scored documents: a line `{"document": NAME, "tokens": N, "nll": SUM}` for each. Raises `LocalFile`."""
    found = []
    for number, line in enumerate(read_regular(path, _MOST_BYTES).decode("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            body = loads_strict(line.encode(), most_bytes=_MOST_BYTES)
            one = DocumentScore(name=str(body["document"]), tokens=int(body["tokens"]), nll=float(body["nll"]))
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise LocalFile(
                f"{path}, line {number}: not a scored document: {first_line(error)}",
                hint='{"document": "a.txt", "tokens": 120, "nll": 310.5}',
            ) from error
        if one.tokens > MOST_WHOLE:
            raise LocalFile(
                f"{path}, line {number}: a document of more than {MOST_WHOLE} tokens", hint="count them again"
            )
        if one.tokens < 1:
            raise LocalFile(f"{path}, line {number}: a document without tokens", hint="leave it out")
        found.append(one)
    if not found:
        raise LocalFile(f"{path}: no documents", hint="one line of JSON for each document")
    return tuple(found)
