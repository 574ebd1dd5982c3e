"""A model to benchmark or to gate: its speed through the plug-in of a runtime, and its perplexity on documents.

One run computes a prompt in one go and then tokens one at a time, as an answer is made. Its times include the way of
the logits to us (1 ms for 32,000 tokens of vocabulary), which is the same for two models of one size. The plug-in stays
loaded between runs. Perplexities are of documents, so that a gate can weigh how much they vary from one to another.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from stoker.core.clock import Clock
from stoker.core.errors import LocalFile, NotVerified, PluginFailed, StokerError, Usage
from stoker.core.frozen import changed, frozen
from stoker.core.jsontext import loads
from stoker.core.text import first_line
from stoker.crossval.bench import BenchRun, ReadEnergy, energy_between
from stoker.crossval.gate_rule import quantile_of
from stoker.crossval.plugin_messages import Loaded, LoadRequest, PluginInfo, PluginRow, fallbacks, require_promised
from stoker.crossval.plugin_process import Plugin
from stoker.crossval.runtimes import RuntimePlaces, model_form, plugin_command, read_runtime, runtimes_for
from stoker.crossval.scored_documents import DocumentScore
from stoker.host.durable import read_regular
from stoker.jobs.job_receipt import named_digest
from stoker.store.weight_files.safetensors import ADAPTER_CONFIG

PROMPT_TOKENS = 128
DECODED_TOKENS = 32
MOST_TOKENS = 1024
"""Of one document: longer ones are cut."""
_MOST_BYTES = 256 << 20
# A prime: ids are spread over the vocabulary, the same in every run.
_STRIDE = 7919
_MOST_CONFIG_BYTES = 1 << 20
_BURST = 5.0
"""How much the mean time between rows may exceed the median."""
_PEAK = re.compile(r"^VmHWM:\s*(\d+) kB", re.MULTILINE)


@frozen
class ModelLoad:
    """How much is computed in one run."""

    prompt_tokens: int = PROMPT_TOKENS
    decoded_tokens: int = DECODED_TOKENS


_USUAL = ModelLoad()


class ModelSubject:
    """A model in a runtime: tokens per second of the prompt, and the time of each token after it."""

    def __init__(  # noqa: PLR0913 - what it is, and how it is measured
        self,
        plugin: Plugin,
        request: LoadRequest,
        clock: Clock,
        *,
        load: ModelLoad,
        energy: ReadEnergy = dict,
        runtime: str = "",
        digest: Mapping[str, str] | None = None,
        base_digest: Mapping[str, str] | None = None,
        is_strict: bool = False,
    ) -> None:
        """`runtime` is the choice as typed, `digest` that of the model. If strict, a silent fallback is an error."""
        self._plugin = plugin
        self._runtime = runtime
        self._digest = dict(digest or {})
        self._base_digest = dict(base_digest or {})
        self._is_strict = is_strict
        self._request = request
        self._clock = clock
        self._load = load
        self._energy = energy
        self._loaded: Loaded | None = None

    @property
    def shown(self) -> str:
        return f"{os.path.basename(self._request.model)} in {self._plugin.command.label}"

    def facts(self) -> Mapping[str, object]:
        """Return the model, and once it is loaded its runtime and how that ran it."""
        return {
            "kind": "model",
            "model": self._request.model,
            "digest": self._digest,
            **({"base": self._request.base, "base_digest": self._base_digest} if self._request.base else {}),
            "choice": self._runtime,
            "precision": self._request.precision,
            "threads": self._request.threads,
            "prompt_tokens": self._load.prompt_tokens,
            "decoded_tokens": self._load.decoded_tokens,
            **({} if self._loaded is None else _path_taken(self._request, self._loaded, self._plugin.hello())),
        }

    def measure(self) -> BenchRun:
        """Process the prompt and the tokens after it once; the model is loaded before the first run."""
        loaded = self._ready()
        # A server names no vocabulary; the smallest one of any model has these ids.
        vocabulary = loaded.n_vocab or 100
        count = self._load.prompt_tokens + self._load.decoded_tokens
        ids = [(number * _STRIDE + 1) % vocabulary for number in range(count)]
        at_s, before = self._clock.wall_s(), self._energy()
        began_s = last_s = self._clock.monotonic_s()
        prompt_s, steps = 0.0, []
        for row in self._plugin.logits(ids, decode_from=self._load.prompt_tokens):
            now_s = self._clock.monotonic_s()
            if row.pos < self._load.prompt_tokens:
                prompt_s = now_s - began_s
            else:
                steps.append((now_s - last_s) * 1000.0)
            last_s = now_s
        return BenchRun(
            at_s=at_s,
            measures={
                "prompt_tokens_per_second": self._load.prompt_tokens / prompt_s,
                "tokens_per_second": len(steps) * 1000.0 / sum(steps),
                "latency_ms": times_of_tokens(steps),
            },
            peak_bytes=peak_bytes_of(self._plugin.pid),
            energy_j=energy_between(before, self._energy()),
        )

    def score(self, documents: Sequence[TextDocument]) -> Iterator[DocumentScore]:
        """Return the score of each document, as they come."""
        self._ready()
        return score_documents(self._plugin, documents)

    @property
    def tokenizer(self) -> str:
        """Return the digest of its vocabulary; empty if the runtime names none."""
        return self._ready().tokenizer_sha256

    def close(self) -> None:
        self._plugin.close()

    def _ready(self) -> Loaded:
        if self._loaded is None:
            loaded = self._plugin.load(self._request)
            if self._is_strict:
                require_promised(self._request, loaded, label=self._plugin.command.label)
            self._loaded = loaded
        return self._loaded


def _path_taken(request: LoadRequest, loaded: Loaded, info: PluginInfo) -> dict[str, object]:
    ran = loaded.ran
    return {
        "runtime": info.name,
        "version": info.version,
        "device": ran.device,
        "weights": ran.weights,
        "kernels": list(ran.kernels),
        "fallbacks": list(fallbacks(request, loaded)),
    }


def open_model(  # noqa: PLR0913 - what it is, where it runs, and how it is measured
    model: str,
    runtime: str,
    places: RuntimePlaces,
    clock: Clock,
    *,
    digest_of: Callable[[str], str],
    energy: ReadEnergy = dict,
    load: ModelLoad = _USUAL,
    is_strict: bool = False,
) -> ModelSubject:
    """Start the runtime of a model: the given one, or the one that was made for its form. Caller closes.

    `model` is an absolute path or an address; `digest_of` returns `sha256:…` of a file and `tree:…` of a folder.
    """
    is_server = model_form(model) == "server"
    if not is_server and not os.path.exists(model):
        raise LocalFile(f"there is no model {model!r}", hint="stoker fixtures makes one; a program stands after --")
    names = runtimes_for(model)
    if not runtime and not names:
        raise Usage(f"{model}: neither GGUF, safetensors nor ONNX", hint="--runtime NAME; a program stands after --")
    # The runtime that was made for a form is the last one of those that read it.
    typed = runtime or (model if is_server else names[-1])
    choice = read_runtime(typed)
    base = base_of(model, places.folder) if not is_server else ""
    return ModelSubject(
        Plugin(plugin_command(choice, places, form=model_form(model)), clock=clock),
        changed(choice.load_request(model), base=base),
        clock,
        load=load,
        energy=energy,
        runtime=typed,
        digest={} if is_server else _digest(model, digest_of),
        base_digest=_digest(base, digest_of) if base else {},
        is_strict=is_strict,
    )


def _digest(path: str, digest_of: Callable[[str], str]) -> dict[str, str]:
    try:
        return named_digest(digest_of(path))
    except StokerError:
        # A folder with links to elsewhere, as downloads make them, has none.
        return {}


def base_of(model: str, folder: str) -> str:
    """Return the folder of the base of an adapter; empty if a model is none. Raises `LocalFile` if it is not here."""
    path = os.path.join(model, ADAPTER_CONFIG)
    if not os.path.isfile(path):
        return ""
    try:
        name = str(loads(read_regular(path, _MOST_CONFIG_BYTES))["base_model_name_or_path"])
    except (ValueError, KeyError, TypeError) as error:
        raise LocalFile(f"{path} names no base: {first_line(error)}", hint="an adapter as PEFT writes it") from error
    found = os.path.join(folder, os.path.expanduser(name))
    if not os.path.isdir(found):
        hint = f"the base as the folder {name} here, or its path as base_model_name_or_path in {path}"
        raise LocalFile(f"there is no base {name!r} of the adapter {model}", hint=hint)
    return os.path.abspath(found)


def require_same_tokens(baseline: ModelSubject, candidate: ModelSubject) -> None:
    """Raise `NotVerified` if two models have different vocabularies: their perplexities can't be compared."""
    one, other = baseline.tokenizer, candidate.tokenizer
    if one and other and one != other:
        raise NotVerified(
            f"{baseline.shown} and {candidate.shown} have other tokens: the tokenizers disagree",
            hint="perplexities per token can't be compared then",
        )


def times_of_tokens(steps: Sequence[float]) -> tuple[float, ...]:
    """Return the times of single tokens by those between their rows; only their mean if rows came in bursts.

    A runtime may be faster than we read, or share its core with us: several rows are there at once then.
    """
    mean = sum(steps) / len(steps)
    return tuple(steps) if quantile_of(steps, 0.5) * _BURST >= mean else (mean,)


def peak_bytes_of(pid: int, proc: str = "/proc") -> int | None:
    """Return the most memory that a process had so far; None where the system does not say."""
    try:
        with open(os.path.join(proc, str(pid), "status"), encoding="ascii", errors="replace") as file:
            match = _PEAK.search(file.read())
    except OSError:
        return None
    return int(match[1]) * 1024 if match is not None else None


# Perplexity.


@frozen
class TextDocument:
    """One document to score."""

    name: str
    text: str


def read_texts(path: str) -> tuple[TextDocument, ...]:
    """Read documents: lines of JSON with `text` (and `name`), or paragraphs of a text file. Raises `LocalFile`."""
    content = read_regular(path, _MOST_BYTES).decode("utf-8", "replace")
    if path.endswith(".jsonl"):
        found = [_text_of(path, number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
    else:
        parts = [part.strip() for part in re.split(r"\n\s*\n", content) if part.strip()]
        found = [TextDocument(name=f"paragraph {number}", text=part) for number, part in enumerate(parts, 1)]
    if not found:
        raise LocalFile(f"{path}: no documents", hint="paragraphs, or a line of JSON with `text` for each")
    return tuple(found)


def _text_of(path: str, number: int, line: str) -> TextDocument:
    try:
        body = loads(line)
        text = body["text"]
        if not isinstance(text, str) or not text:
            message = "`text` is no text"
            raise ValueError(message)
        return TextDocument(name=str(body.get("name", f"line {number}")), text=text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LocalFile(
            f"{path}, line {number}: not a document: {first_line(error)}", hint='{"name": "a", "text": "…"}'
        ) from error


def score_documents(
    plugin: Plugin, documents: Sequence[TextDocument], *, most_tokens: int = MOST_TOKENS
) -> Iterator[DocumentScore]:
    """Return the score of each document that has at least two tokens, as they come; the model is loaded."""
    for document in documents:
        ids = plugin.tokenize(document.text)[:most_tokens]
        if len(ids) < 2:
            continue
        rows = plugin.logits(ids[:-1])
        nll = math.fsum(_nll(plugin, row, following) for row, following in zip(rows, ids[1:], strict=True))
        yield DocumentScore(name=document.name, tokens=len(ids) - 1, nll=nll)


def _nll(plugin: Plugin, row: PluginRow, following: int) -> float:
    """Return the negative log-likelihood of the token that follows a position."""
    if not row.values:
        found = dict(row.top).get(following)
        if found is None:
            label = plugin.command.label
            raise PluginFailed(
                f"{label} names no probability of token {following} at position {row.pos}",
                hint="a server has to return the logprobs of the whole vocabulary",
                plugin=label,
                reason="unsupported",
            )
        return -found
    import numpy as np

    values = np.frombuffer(row.values.cast("B"), dtype=np.float32).astype(np.float64)
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum())) - float(values[following])
