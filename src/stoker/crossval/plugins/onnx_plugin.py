"""A plug-in: ONNX Runtime on an exported model with the input `input_ids` and the output `logits`.

More outputs are layers, under their own names. There is no cache: each piece runs the whole sequence up to its end.
ONNX Runtime changes to the processor silently if a provider fails, so `ran` is read from its profile of a first run.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stoker.crossval.plugins.protocol_loop import (
    ModelPlugin,
    PluginError,
    Row,
    layer_row,
    logits_row,
    serve,
    verify_file,
    vocabulary_digest,
)

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "rocm": "ROCMExecutionProvider"}
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
_QUANTISED = {"MatMulNBits": "INT4", "MatMulInteger": "INT8", "DynamicQuantizeMatMul": "INT8", "QLinearMatMul": "INT8"}
_LABELS = {"tensor(float)": "F32", "tensor(float16)": "F16", "tensor(bfloat16)": "BF16"}


class OnnxPlugin(ModelPlugin):
    """ONNX Runtime with one model."""

    name = "onnxruntime"
    can = ("tokenize", "logits", "layers")

    def __init__(self) -> None:
        self.version = _version()
        self._session: Any = None
        self._tokenizer: Any = None
        self._inputs: set[str] = set()

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        import onnxruntime

        path = str(request["model"])
        path = os.path.join(path, "model.onnx") if os.path.isdir(path) else path
        verify_file(path, str(request.get("sha256", "")))
        device = str(request.get("device") or "cpu")
        provider = _PROVIDERS.get(device.partition(":")[0], "")
        if provider not in onnxruntime.get_available_providers():
            raise PluginError("unsupported", f"{self.version} has no device {device} here")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(request.get("threads") or 1)
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.enable_profiling = True
        options.profile_file_prefix = os.path.join(tempfile.mkdtemp(prefix="stoker-onnx-"), "profile")
        session = onnxruntime.InferenceSession(path, options, providers=[provider])
        self._inputs = {one.name for one in session.get_inputs()}
        outputs = {one.name: one for one in session.get_outputs()}
        if "input_ids" not in self._inputs or "logits" not in outputs:
            raise PluginError(
                "unsupported", f"{path} has no input input_ids or no output logits; an export with a cache has more"
            )
        self._session = session
        first = self._run([0], ["logits"])[0]
        kernels = _profiled(session.end_profiling())
        ops = {name.split(".")[-1] for name in kernels}
        quantised = next((label for op, label in _QUANTISED.items() if op in ops), "")
        self._tokenizer = _tokenizer_beside(path)
        layers = [name for name in outputs if name.startswith("l_out-")]
        return {
            "n_vocab": int(first.shape[-1]),
            "n_layers": len(layers),
            "width": int(self._run([0], layers[:1])[0].shape[-1]) if layers else 0,
            "ran": {
                "device": "+".join(sorted({name.split(".")[0] for name in kernels})),
                "weights": quantised or _LABELS.get(outputs["logits"].type, outputs["logits"].type),
                "kv": "none",
                "flash": any("Attention" in op for op in ops),
                "kernels": kernels,
            },
            "tensors": 0,
            "used": 0,
            "tokenizer_sha256": "" if self._tokenizer is None else _vocabulary_digest(self._tokenizer),
        }

    def tokenize(self, text: str, *, special: bool) -> Sequence[int]:
        if self._tokenizer is None:
            raise PluginError("no_tokenizer", "there is no tokenizer.json beside the model, or no library tokenizers")
        self._tokenizer.encode_special_tokens = not special
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def logits(self, ids: Sequence[int], pieces: Iterable[tuple[int, int]], *, layers: bool) -> Iterator[Row]:
        if self._session is None:
            raise PluginError("no_model", "no model is loaded")
        import numpy as np

        names = [one.name for one in self._session.get_outputs() if layers or one.name == "logits"]
        for begin, end in pieces:
            made = dict(zip(names, self._run(ids[:end], names), strict=True))
            found = made.pop("logits")
            for pos in range(begin, end):
                for name, values in made.items():
                    if values.ndim == 3:
                        yield layer_row(pos, name, np.ascontiguousarray(values[0, pos], dtype="<f4"))
                yield logits_row(pos, np.ascontiguousarray(found[0, pos], dtype="<f4"))

    def _run(self, ids: Sequence[int], outputs: Sequence[str]) -> list[Any]:
        import numpy as np

        length = len(ids)
        known = {
            "input_ids": [list(ids)],
            "attention_mask": [[1] * length],
            "position_ids": [list(range(length))],
        }
        if unknown := self._inputs - set(known):
            raise PluginError("unsupported", f"inputs {', '.join(sorted(unknown)[:3])}: export it without a cache")
        feed = {name: np.asarray(known[name], dtype=np.int64) for name in self._inputs}
        made: list[Any] = self._session.run(list(outputs), feed)
        return made


def _version() -> str:
    for name in _DISTRIBUTIONS:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    raise PluginError("not_installed", "onnxruntime is not installed")


def _profiled(path: str) -> list[str]:
    """Return the operations of a profile, each behind its device: `cpu.MatMul`. The file is deleted."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)
    os.unlink(path)
    os.rmdir(os.path.dirname(path))
    by_provider = {provider: device for device, provider in _PROVIDERS.items()}
    found = set()
    for event in events:
        args = event.get("args", {}) if event.get("cat") == "Node" else {}
        if "op_name" in args and "provider" in args:
            found.add(f"{by_provider.get(args['provider'], args['provider'])}.{args['op_name']}")
    return sorted(found)


def _tokenizer_beside(path: str) -> Any:
    file = os.path.join(os.path.dirname(os.path.abspath(path)), "tokenizer.json")
    if not os.path.isfile(file):
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    return Tokenizer.from_file(file)


def _vocabulary_digest(tokenizer: Any) -> str:
    count = tokenizer.get_vocab_size()
    return vocabulary_digest((tokenizer.id_to_token(number) or "").encode() for number in range(count))


if __name__ == "__main__":
    serve(OnnxPlugin)
