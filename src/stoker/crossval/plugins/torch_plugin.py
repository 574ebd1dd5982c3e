"""A plug-in: transformers on torch, for folders with safetensors, LoRA adapters of these, and GGUF files.

Precisions are f32, f16, bf16, 4bit (bitsandbytes) and 4bit-as-f32, the same weights computed as floats. Nothing is
fetched and no code of a model is executed. Layers come from hooks on the decoder's layers, since the last of
transformers' own hidden states is behind the final norm. A replay calls one layer with the arguments that it gets in a
run over as many tokens. What `ran` says is read from the parameters and observed in a first run of one token.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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

_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_LABELS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
_FOUR_BIT, _FOUR_BIT_AS_F32 = "4bit", "4bit-as-f32"
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_ADAPTER, _ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_LONGEST_HEADER = 100 << 20


class TorchPlugin(ModelPlugin):
    """transformers with one model."""

    name = "torch"
    can = ("tokenize", "logits", "layers", "replay")

    def __init__(self) -> None:
        try:
            versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers")]
        except importlib.metadata.PackageNotFoundError as error:
            raise PluginError("not_installed", f"{error.name} is not installed") from error
        self.version = ", ".join(versions)
        self._model: Any = None
        self._layers: Any = ()
        self._path = ""
        self._adapter = ""
        self._tokenizer: Any = None
        self._device = "cpu"
        self._width = 0
        self._calls: dict[tuple[int, int], tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        import torch

        verify_file(str(request["model"]), str(request.get("sha256", "")))
        self._path = str(request.get("base") or request["model"])
        self._adapter = str(request["model"]) if request.get("base") else ""
        _refuse_other_file(self._path)
        device = str(request.get("device") or "cpu")
        _prepare(torch, request, device)
        self._model, self._tokenizer = None, None
        self._calls.clear()
        model, missing, unused = self._read(torch, str(request.get("precision") or "f32"), device)
        if missing:
            raise PluginError("load_failed", f"{self._path} lacks {', '.join(sorted(missing)[:5])}")
        if self._adapter:
            _put_adapter(model, self._adapter)
        self._model = model.eval()
        self._device = device
        config = model.config.get_text_config()
        self._layers = _layers_of(model, config.num_hidden_layers)
        self._width = config.hidden_size
        tensors = _count_tensors(self._path)
        own = len({one.data_ptr() for one in model.state_dict().values()})
        kernels = self._observe(torch)
        return {
            "n_vocab": self._head_rows(),
            "n_layers": config.num_hidden_layers,
            "width": self._width,
            "ran": {
                "device": "+".join(sorted({one.device.type for one in model.parameters()})),
                "weights": _weights_of(model),
                "kv": _LABELS.get(str(model.dtype).removeprefix("torch."), str(model.dtype)),
                "flash": any("flash" in name for name in kernels),
                "kernels": kernels,
            },
            "tensors": tensors,
            "used": min(tensors, own) if self._path.endswith(".gguf") else tensors - len(unused),
            "tokenizer_sha256": self._vocabulary_digest(self._head_rows()),
        }

    def tokenize(self, text: str, *, special: bool) -> Sequence[int]:
        made = self._read_tokenizer()(text, add_special_tokens=False, split_special_tokens=not special)
        ids: list[int] = made["input_ids"]
        return ids

    def logits(self, ids: Sequence[int], pieces: Iterable[tuple[int, int]], *, layers: bool) -> Iterator[Row]:
        import torch

        model = self._required_model()
        n_vocab = self._head_rows()
        if bad := [one for one in ids if not 0 <= one < n_vocab]:
            raise PluginError("bad_request", f"id {bad[0]} is not in a vocabulary of {n_vocab}")
        cache = None
        for begin, end in pieces:
            with torch.no_grad(), self._kept_layers(is_wanted=layers) as kept:
                piece = torch.tensor([ids[begin:end]], device=self._device)
                made = model(input_ids=piece, past_key_values=cache, use_cache=True)
            cache = made.past_key_values
            found = _float(made.logits[0])
            # Each piece's own, before the next piece: never more than one piece is in memory.
            hidden = {name: _float(values) for name, values in kept.items()}
            for row in range(end - begin):
                for name, values in hidden.items():
                    yield layer_row(begin + row, name, values[row].numpy().tobytes())
                yield logits_row(begin + row, found[row].numpy().tobytes())

    def replay(self, layer: int, values: bytes) -> bytes:
        import torch

        model = self._required_model()
        if not values or len(values) % (4 * self._width) or not 0 <= layer <= len(self._layers):
            raise PluginError("bad_request", f"layer {layer} with {len(values)} bytes, width {self._width}")
        dtype = next(iter(self._layers[0].parameters())).dtype
        given = torch.frombuffer(bytearray(values), dtype=torch.float32).reshape(1, -1, self._width)
        given = given.to(self._device, dtype if dtype.is_floating_point else model.dtype)
        with torch.no_grad():
            if layer == len(self._layers):
                return _bytes(self._behind_layers(torch, model, given)[0])
            args, words = self._call_of(torch, model, layer, given.shape[1])
            return _bytes(_hidden(self._layers[layer](given, *args, **words))[0])

    def _read(self, torch: Any, precision: str, device: str) -> tuple[Any, set[str], set[str]]:
        """Return the model, the names of parameters that its file lacks, and those of tensors that it does not use."""
        from transformers import AutoModelForCausalLM

        folder, words = _source(self._path)
        if precision in (_FOUR_BIT, _FOUR_BIT_AS_F32):
            words |= {"quantization_config": _four_bits(torch), "device_map": {"": device}}
        elif precision in _DTYPES:
            words["dtype"] = getattr(torch, _DTYPES[precision])
        else:
            raise PluginError(
                "unsupported", f"torch has no precision {precision}; it has {', '.join(_DTYPES)}, 4bit, 4bit-as-f32"
            )
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="eager",
            output_loading_info=True,
            **words,
        )
        if bad := [str(one) for one in info.get("mismatched_keys", ())]:
            raise PluginError("load_failed", f"{self._path} has other shapes: {', '.join(sorted(bad)[:5])}")
        if precision == _FOUR_BIT_AS_F32:
            model = model.dequantize().float()
        if precision != _FOUR_BIT:
            model = model.to(device)
        return model, set(info.get("missing_keys", ())), set(info.get("unexpected_keys", ()))

    def _read_tokenizer(self) -> Any:
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            folder, words = _source(self._path)
            words.pop("use_safetensors", None)
            self._tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, **words
            )
        return self._tokenizer

    def _vocabulary_digest(self, count: int) -> str:
        try:
            tokenizer = self._read_tokenizer()
        except (OSError, ValueError, KeyError, TypeError, ImportError):
            # A model without a tokenizer: `tokenize` will say why.
            return ""
        # transformers adds names of its own behind the model's tokens.
        tokens = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), count))))
        return vocabulary_digest((one or "").encode("utf-8", "replace") for one in tokens)

    def _required_model(self) -> Any:
        if self._model is None:
            raise PluginError("no_model", "no model is loaded")
        return self._model

    def _head_rows(self) -> int:
        head = self._model.get_output_embeddings()
        return int(self._model.config.get_text_config().vocab_size if head is None else head.weight.shape[0])

    def _observe(self, torch: Any) -> list[str]:
        """Return the kernels that run for one token."""
        ids = torch.tensor([[0]], device=self._device)
        if self._device != "cpu":
            from torch.profiler import ProfilerActivity, profile

            with torch.no_grad(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                self._model(input_ids=ids, use_cache=False)
                torch.cuda.synchronize()
            found = {one.name[:128] for one in seen.events() if str(one.device_type).endswith("CUDA")}
            return sorted(f"cuda.{name}"[:128] for name in found)
        from torch.utils._python_dispatch import TorchDispatchMode

        names: set[str] = set()

        class Observer(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
            """Notes the name of every operation."""

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                names.add(f"cpu.{func}")
                return func(*args, **(kwargs or {}))

        with torch.no_grad(), Observer():
            self._model(input_ids=ids, use_cache=False)
        return sorted(names)

    @contextmanager
    def _kept_layers(self, *, is_wanted: bool) -> Iterator[dict[str, Any]]:
        """Keep the input of the first layer, the output of each and the input of the head, under llama.cpp's names."""
        kept: dict[str, Any] = {}
        hooks = []
        if is_wanted:

            def keep_first(_module: Any, args: Any, words: Any) -> None:
                kept["embd"] = (args[0] if args else words["hidden_states"])[0]

            def keep(name: str) -> Any:
                def hook(_module: Any, _args: Any, made: Any) -> None:
                    kept[name] = _hidden(made)[0]

                return hook

            hooks = [self._layers[0].register_forward_pre_hook(keep_first, with_kwargs=True)]
            hooks += [layer.register_forward_hook(keep(f"l_out-{at}")) for at, layer in enumerate(self._layers)]
            head = self._model.get_output_embeddings()

            def keep_norm(_module: Any, args: Any) -> None:
                kept["result_norm"] = args[0][0]

            hooks += [] if head is None else [head.register_forward_pre_hook(keep_norm)]
        try:
            yield kept
        finally:
            for hook in hooks:
                hook.remove()

    def _call_of(self, torch: Any, model: Any, layer: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the other arguments with which a layer is called for a sequence of that length."""
        if (length, layer) not in self._calls:
            self._calls.clear()

            def keeper(at: int) -> Any:
                def keep(_module: Any, args: Any, words: Any) -> None:
                    self._calls[length, at] = args[1:], {**words}

                return keep

            hooks = [one.register_forward_pre_hook(keeper(at), with_kwargs=True) for at, one in enumerate(self._layers)]
            try:
                model(input_ids=torch.zeros((1, length), dtype=torch.long, device=self._device), use_cache=False)
            finally:
                for hook in hooks:
                    hook.remove()
            for _, words in self._calls.values():
                words.pop("hidden_states", None)
        return self._calls[length, layer]

    def _behind_layers(self, torch: Any, model: Any, given: Any) -> Any:
        """Return the logits for an output of the last layer: what the final norm and the head make of it."""

        def instead(_module: Any, _args: Any, made: Any) -> Any:
            return (given, *made[1:]) if isinstance(made, tuple) else given

        hook = self._layers[-1].register_forward_hook(instead)
        try:
            ids = torch.zeros((1, given.shape[1]), dtype=torch.long, device=self._device)
            return model(input_ids=ids, use_cache=False).logits
        finally:
            hook.remove()


def _prepare(torch: Any, request: dict[str, Any], device: str) -> None:
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise PluginError("unsupported", f"torch {torch.__version__} has no device {device} here")
    seed = int(request.get("seed") or 0)
    random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(int(request.get("threads") or 1))
    # Some operations have no deterministic form: they warn in the log.
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def _refuse_other_file(path: str) -> None:
    """Raise `PluginError` for a file that transformers would not load: it takes the folder of a safetensors file."""
    folder, name = (path, "") if os.path.isdir(path) else os.path.split(path)
    if name.endswith(".safetensors") and name != _SINGLE:
        raise PluginError(
            "unsupported",
            f"{path}: transformers would load {_SINGLE} of its folder instead; name a folder in which it is {_SINGLE}, "
            "beside config.json and the tokenizer, or the folder of a model in parts",
        )
    if not name.endswith(".gguf") and all(os.path.isfile(os.path.join(folder, one)) for one in (_SINGLE, _INDEX)):
        raise PluginError("unsupported", f"{folder or '.'} has both {_SINGLE} and {_INDEX}: remove one of them")


def _source(path: str) -> tuple[str, dict[str, Any]]:
    """Return the folder for transformers, and what it has to know beside it."""
    if path.endswith(".gguf"):
        return os.path.dirname(path) or ".", {"gguf_file": os.path.basename(path)}
    return (path if os.path.isdir(path) else os.path.dirname(path) or "."), {"use_safetensors": True}


def _four_bits(torch: Any) -> Any:
    from transformers import BitsAndBytesConfig

    try:
        importlib.metadata.version("bitsandbytes")
    except importlib.metadata.PackageNotFoundError as error:
        raise PluginError("not_installed", "bitsandbytes is not installed: precision 4bit needs it") from error
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=False,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def _layers_of(model: Any, count: int) -> Any:
    """Return the decoder's layers: the outermost list of as many modules as the configuration has layers."""
    from torch.nn import ModuleList

    found = [(name, one) for name, one in model.named_modules() if isinstance(one, ModuleList) and len(one) == count]
    if not found:
        raise PluginError("unsupported", f"{type(model).__name__} has no list of {count} layers")
    return min(found, key=lambda pair: pair[0].count("."))[1]


def _weights_of(model: Any) -> str:
    """Return the type that most numbers of a model have."""
    sizes: dict[str, int] = {}
    for one in model.parameters():
        state = getattr(one, "quant_state", None)
        dtype = str(one.dtype).removeprefix("torch.")
        name = str(getattr(state, "quant_type", "4bit")).upper() if state is not None else _LABELS.get(dtype, dtype)
        sizes[name] = sizes.get(name, 0) + one.numel() * (2 if state is not None else 1)
    return max(sizes, key=lambda name: sizes[name], default="")


def _hidden(made: Any) -> Any:
    return made[0] if isinstance(made, tuple) else made


def _float(values: Any) -> Any:
    return values.detach().float().cpu().contiguous()


def _bytes(values: Any) -> bytes:
    made: bytes = _float(values).numpy().tobytes()
    return made


def _count_tensors(path: str) -> int:
    """Return the number of tensors in the files of a model, from their headers."""
    if path.endswith(".gguf"):
        with open(path, "rb") as file:
            magic, _version, count = struct.unpack("<4sIQ", file.read(16))
        return int(count) if magic == b"GGUF" else 0
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    index = os.path.join(folder, _INDEX)
    if os.path.isfile(index):
        with open(index, encoding="utf-8") as file:
            return len(json.load(file)["weight_map"])
    return len(_names_in(os.path.join(folder, _SINGLE)))


def _names_in(path: str) -> list[str]:
    """Return the names of the tensors of a safetensors file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _LONGEST_HEADER:
            raise PluginError("load_failed", f"{path}: a header of {length} bytes")
        return [name for name in json.loads(file.read(length)) if name != "__metadata__"]


def _put_adapter(model: Any, folder: str) -> None:
    """Put a LoRA adapter into the layers of its base. Raises `PluginError` if not all of it fits there."""
    with open(os.path.join(folder, _ADAPTER_CONFIG), encoding="utf-8") as file:
        kind = json.load(file).get("peft_type")
    if kind != "LORA":
        raise PluginError("unsupported", f"{folder} is an adapter of type {kind}: only LORA is supported")
    try:
        from peft import PeftModel
    except ImportError as error:
        raise PluginError("not_installed", "peft is not installed: an adapter needs it") from error
    PeftModel.from_pretrained(model, folder, is_trainable=False)
    known = len(_names_in(os.path.join(folder, _ADAPTER)))
    places = sum("lora_" in name for name in model.state_dict())
    if known != places:
        raise PluginError("load_failed", f"{folder} has {known} tensors, its base has places for {places}")


if __name__ == "__main__":
    serve(TorchPlugin)
