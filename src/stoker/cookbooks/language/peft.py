"""Adapters in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`, with PEFT's names.

Written adapters load with `PeftModel.from_pretrained`; adapters of PEFT are read if they are LoRA or DoRA on matrices
of blocks. The same adapter gives the same bytes. Importing this module imports no library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stoker.cookbooks.language.compute.general_shape import named_as
from stoker.core import jsontext
from stoker.core.errors import BadInput, Damaged
from stoker.store.weight_files.headers import Header, read_foreign_json, shown, unreadable_weights
from stoker.store.weight_files.safetensors import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_header

if TYPE_CHECKING:
    from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState, Pairs

_AGAIN = "copy or train it again"
_PICKLED = "adapter_model.bin"
_LARGEST_RANK = 2**31
_LARGEST_ALPHA = 1e30
_WIDTHS = frozenset({"F64", "F32", "F16", "BF16"})
_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>A|B|magnitude_vector)(?P<weight>\.weight)?")
_OUTER = re.compile(r"base_model\.model\.(?P<module>.+)\.(?P<part>weight|bias)")
_MAGNITUDES = "magnitude_vector"
_REFUSED: Mapping[str, str] = {
    "use_qalora": "QA-LoRA",
    "use_bdlora": "block-diagonal LoRA",
    "trainable_token_indices": "trained tokens",
    "target_parameters": "adapters on bare parameters",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activated LoRA",
    "lora_bias": "biases of its own",
    "arrow_config": "routed adapters (Arrow)",
    "monteclora_config": "Monte Carlo LoRA",
    "kasa_config": "KaSA",
}
"""Settings that change an adapter's meaning and are not supported."""
_BEGINNINGS: Final = frozenset({"gaussian", "eva", "orthogonal", "mica"})
"""Initialisations that leave the base as it is. Adapters of others belong to a base that PEFT changed for them."""


def adapter_files(folder: Path) -> tuple[Path, ...]:
    """Return the files that identify an adapter."""
    return (folder / ADAPTER_CONFIG, folder / ADAPTER_WEIGHTS)


def write_adapter(folder: Path, spec: AdapterSpec, weights: Pairs, *, base_name: str) -> None:
    """Write an adapter into a folder."""
    from safetensors.torch import save

    tensors = {
        name: one.detach().float().cpu().contiguous()
        for module, own in weights.items()
        for name, one in zip(_names(module, spec, len(own)), own, strict=True)
    }
    (folder / ADAPTER_WEIGHTS).write_bytes(save(dict(sorted(tensors.items())), metadata={"format": "pt"}))
    text = jsontext.dumps(_config(spec, base_name), indent=2, sort_keys=True)
    (folder / ADAPTER_CONFIG).write_text(f"{text}\n", encoding="utf-8", newline="")


def read_adapter(folder: Path) -> AdapterState:
    """Read an adapter that this module or PEFT wrote. Raises `BadInput` if it is neither LoRA nor DoRA, `Damaged`."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    from stoker.cookbooks.language.compute.banks import AdapterSpec, AdapterState

    config = read_config(folder)
    # Checked again: it may have been replaced since.
    adapter_header(folder)
    try:
        tensors = load((folder / ADAPTER_WEIGHTS).read_bytes())
    except (SafetensorError, OSError) as error:
        raise unreadable_weights(str(folder), error) from error
    modules, whole = modules_of(folder, tensors, config)
    spec = AdapterSpec(
        rank=config["r"],
        alpha=float(config["lora_alpha"]),
        targets=tuple(dict.fromkeys(name.rpartition(".")[2] for name in modules)),
        dropout=float(config.get("lora_dropout") or 0.0),
        rslora=bool(config.get("use_rslora")),
        dora=is_dora(config),
        whole=tuple(whole),
        is_transposed=config.get("fan_in_fan_out") is True,
    )
    named = {module: tensor_names(module, dora=spec.dora) for module in modules} | whole
    weights = {module: tuple(tensors[name].float() for name in names) for module, names in named.items()}
    return AdapterState(spec=spec, weights=weights)


def over_base(adapter: AdapterState, names: Iterable[str]) -> AdapterState:
    """Return an adapter with the names that its modules have in a base. Raises `BadInput` if one is not there."""
    known = named_as(names, adapter.weights)
    odd = [module for module in adapter.weights if module not in known]
    if odd:
        message = f"the base has no {shown(odd[0])}, for which the adapter was trained"
        raise BadInput(message, hint="use the base that it was trained on")
    spec = replace(adapter.spec, whole=tuple(known[one] for one in adapter.spec.whole))
    return replace(adapter, spec=spec, weights={known[module]: own for module, own in adapter.weights.items()})


def _names(module: str, spec: AdapterSpec, count: int) -> tuple[str, ...]:
    """Return the names of a module's tensors, of which there are so many."""
    if module in spec.whole:
        return tuple(f"base_model.model.{module}.{part}" for part in _PARTS[:count])
    return tensor_names(module, dora=spec.dora)


def is_dora(config: Mapping[str, Any]) -> bool:
    """Return True if an adapter has magnitudes."""
    return bool(config.get("use_dora"))


def tensor_names(module: str, *, dora: bool) -> tuple[str, ...]:
    """Return the names of a matrix's tensors: A, B, and its magnitudes if it has any."""
    at = f"base_model.model.{module}.lora_"
    return (f"{at}A.weight", f"{at}B.weight", *[f"{at}{_MAGNITUDES}"][:dora])


def read_config(folder: Path) -> dict[str, Any]:
    """Read `adapter_config.json`. Raises `BadInput` if it is neither LoRA nor DoRA."""
    path = folder / ADAPTER_CONFIG
    try:
        config = read_foreign_json(path)
    except OSError:
        raise BadInput(f"{folder} has no {ADAPTER_CONFIG}", hint="an adapter is a folder as PEFT writes it") from None
    except ValueError as error:
        raise BadInput(f"{path} is no JSON: {error}", hint=_AGAIN) from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        said = config.get("peft_type") if isinstance(config, dict) else None
        raise BadInput(f"{path}: peft_type is {shown(repr(said))}; only LORA is supported", hint="merge it with PEFT")
    odd = [what for key, what in _REFUSED.items() if config.get(key)]
    odd += [f"{key}={shown(repr(config[key]))}" for key in ("rank_pattern", "alpha_pattern") if config.get(key)]
    if config.get("bias", "none") != "none":
        odd.append("trained biases")
    saved = config.get("modules_to_save") or []
    if not isinstance(saved, list) or not all(isinstance(one, str) and one for one in saved):
        odd.append(f"modules_to_save={shown(repr(saved))}")
    if odd:
        raise BadInput(f"{path}: not supported: {', '.join(odd)}", hint="merge it with PEFT: merge_and_unload()")
    if not _keeps_base(start := config.get("init_lora_weights")):
        message = f"{path}: not supported: init_lora_weights={shown(repr(start))}, which changes the base"
        raise BadInput(
            message, hint="save it with PEFT's path_initial_model_for_weight_conversion, or merge it with PEFT"
        )
    rank, alpha, dropout = config.get("r"), config.get("lora_alpha"), config.get("lora_dropout") or 0.0
    if type(rank) is not int or not 1 <= rank <= _LARGEST_RANK or not _is_number(alpha):
        message = f"{path}: r={shown(repr(rank))}, lora_alpha={shown(repr(alpha))}: not a rank and a number"
        raise BadInput(message, hint=_AGAIN)
    if not _is_number(dropout) or not 0 <= dropout < 1:
        raise BadInput(f"{path}: lora_dropout={shown(repr(dropout))}: not from 0 to 1", hint=_AGAIN)
    return config


def _keeps_base(start: Any) -> bool:
    """Return True if an adapter that began so is one over the base itself."""
    return start is None or isinstance(start, bool) or (isinstance(start, str) and start.lower() in _BEGINNINGS)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # An integer may be larger than any float.
    return abs(value) <= _LARGEST_ALPHA


def adapter_header(folder: Path) -> Header:
    """Read the header of an adapter's tensors. Raises `BadInput`, and `Damaged` if it is incomplete."""
    path = folder / ADAPTER_WEIGHTS
    try:
        header = read_header(path)
    except OSError:
        hint = "an adapter is a folder as PEFT writes it"
        if (folder / _PICKLED).exists():
            hint = f"{_PICKLED} may run any code when it is read, so it is not read; save it with PEFT as safetensors"
        raise BadInput(f"{folder} has no {ADAPTER_WEIGHTS}", hint=hint) from None
    except ValueError as error:
        raise Damaged(f"{path} is damaged: {error}", hint=_AGAIN) from None
    odd = sorted({one.dtype for one in header.tensors.values()} - _WIDTHS)
    if odd:
        message = f"{path} holds {shown(repr(odd[0]))}, and an adapter is made of {', '.join(sorted(_WIDTHS))}"
        raise BadInput(message, hint="merge it with PEFT")
    return header


def modules_of(
    folder: Path, names: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the target matrices of an adapter's tensors, and the tensors of each module that it has whole.

    Raises `BadInput` for names that are neither.
    """
    dora, saved = is_dora(config), tuple(config.get("modules_to_save") or ())
    # PEFT names the embedding only, and writes the head that is tied to it, too.
    is_tied = bool(saved and config.get("ensure_weight_tying"))
    sides: dict[str, set[str]] = {}
    parts: dict[str, set[str]] = {}
    odd = []
    for name in names:
        match, outer = _NAME.fullmatch(name), _OUTER.fullmatch(name)
        if match is None and outer is not None and (is_tied or outer["module"].endswith(saved or "/")):
            parts.setdefault(outer["module"], set()).add(outer["part"])
        # Only magnitudes are no module's weight.
        elif match is None or (match["side"] == _MAGNITUDES) is (match["weight"] is not None):
            odd.append(name)
        else:
            sides.setdefault(match["module"], set()).add(match["side"])
    wanted = {"A", "B", *[_MAGNITUDES][:dora]}
    odd += [module for module, found in sides.items() if found != wanted]
    if odd or not sides:
        pair = f"lora_A, lora_B and lora_{_MAGNITUDES} (DoRA)" if dora else "a pair of lora_A and lora_B"
        what = f"{shown(odd[0])} is not {pair}" if odd else "it holds nothing"
        raise BadInput(f"{folder / ADAPTER_WEIGHTS}: {what}", hint=_AGAIN)
    lacking = [module for module, found in parts.items() if "weight" not in found]
    lacking += [one for one in saved if not any(module.endswith(one) for module in parts)]
    if lacking:
        raise BadInput(f"{folder / ADAPTER_WEIGHTS}: no weight of {shown(lacking[0])}, a module to save", hint=_AGAIN)
    whole = {
        module: tuple(f"base_model.model.{module}.{part}" for part in _PARTS if part in found)
        for module, found in parts.items()
    }
    return tuple(sides), whole


_PARTS = ("weight", "bias")


def _config(spec: AdapterSpec, base_name: str) -> dict[str, Any]:
    """Return the config for PEFT; everything else has its default, in every version."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "inference_mode": True,
        "r": spec.rank,
        "lora_alpha": int(spec.alpha) if spec.alpha.is_integer() else spec.alpha,
        "lora_dropout": spec.dropout,
        "target_modules": sorted(spec.targets),
        "use_rslora": spec.rslora,
        "use_dora": spec.dora,
        "bias": "none",
        "fan_in_fan_out": spec.is_transposed,
        "init_lora_weights": True,
        **({"modules_to_save": list(spec.whole)} if spec.whole else {}),
    }
