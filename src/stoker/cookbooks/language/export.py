"""The stage that writes an adapter as a GGUF file for llama.cpp (`--lora`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from stoker.authoring import BadInput, StageContext, arg, stage
from stoker.cookbooks.language.arguments import AdapterOverBaseArgs
from stoker.cookbooks.language.kinds import GGUF_ADAPTER, GgufAdapter
from stoker.cookbooks.language.merge import warn_of_another_base
from stoker.store.weight_files.tensor_layouts import Architecture, interleaved, tensor_layouts

if TYPE_CHECKING:
    from stoker.cookbooks.language.bases import TrainableBase
    from stoker.cookbooks.language.compute.banks import AdapterState

GgufDtype = Literal["float32", "float16", "bfloat16"]
_FILE_TYPES: Final[Mapping[GgufDtype, tuple[str, int]]] = {
    "float32": ("F32", 0),
    "float16": ("F16", 1),
    "bfloat16": ("BF16", 32),
}
"""Of each dtype: its name in GGUF, and the number of a file of such matrices."""
GGUF_FAMILIES: Final[Mapping[str, tuple[str, Architecture]]] = {
    "llama": ("llama", "llama"),
    "mistral": ("llama", "llama"),
    "qwen2": ("qwen2", "qwen2"),
    "qwen3": ("qwen3", "qwen2"),
}
"""Of each family: its name in llama.cpp, and the layout of its matrices there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportArgs(AdapterOverBaseArgs):
    """The adapter, and the precision of the file."""

    dtype: GgufDtype = arg("float32", help="precision of the file")


@stage("language/export_adapter", version=1, uses=("gguf", "safetensors", "torch"), foresee=warn_of_another_base)
def export_adapter(job: StageContext, args: ExportArgs) -> GgufAdapter:
    """Write an adapter as one GGUF file."""
    from stoker.cookbooks.language.bases import read_base
    from stoker.cookbooks.language.peft import read_adapter

    base = read_base(Path(args.base), name=args.base_name, use="exported")
    if note := warn_of_another_base(args):
        job.tell(note)
    adapter = read_adapter(Path(args.adapter))
    write_gguf_adapter(job.out / GGUF_ADAPTER, base, adapter, args.dtype)
    job.log(f"{len(adapter.weights)} matrices of {base.name}; llama.cpp takes the file as --lora {GGUF_ADAPTER}")
    return job.made(GgufAdapter)


def write_gguf_adapter(path: Path, base: TrainableBase, adapter: AdapterState, dtype: GgufDtype) -> None:
    """Write an adapter for llama.cpp. Raises `BadInput` if a matrix is not finite in this precision."""
    import gguf
    import torch

    name, layout = GGUF_FAMILIES[base.family]
    shape, spec = base.shape, adapter.spec
    places = {
        one.name: one for one in tensor_layouts(layout, layers=shape.layers, heads=shape.heads, kv_heads=shape.kv_heads)
    }
    kind, number = _FILE_TYPES[dtype]
    writer = gguf.GGUFWriter(path, name)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    # llama.cpp divides it by the rank.
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, spec.scale * spec.rank)
    writer.add_file_type(number)
    for module, (a, b) in adapter.weights.items():
        place = places[f"{module}.weight"]
        order = [interleaved(row, len(b), place.heads) for row in range(len(b))] if place.heads else slice(None)
        for side, matrix in (("a", a), ("b", b[order])):
            if not matrix.to(getattr(torch, dtype)).isfinite().all():
                hint = "the adapter did not train well: export another; or a wider dtype="
                raise BadInput(f"lora_{side.upper()} of {module} is not finite in {dtype}", hint=hint)
            values = gguf.quants.quantize(matrix.numpy(), gguf.GGMLQuantizationType[kind])
            writer.add_tensor(f"{place.gguf}.lora_{side}", values, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
