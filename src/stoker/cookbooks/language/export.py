"""The stages that write an adapter (`--lora`) or a whole model as a GGUF file for llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.authoring import BadInput, StageContext, arg, stage
from stoker.cookbooks.language.arguments import AdapterOverBaseArgs, BaseArgs
from stoker.cookbooks.language.gguf_model import (
    FILE_TYPES,
    GGUF_FAMILIES,
    GgufDtype,
    gguf_places,
    write_gguf_model,
)
from stoker.cookbooks.language.kinds import GGUF_ADAPTER, GGUF_MODEL, GgufFile
from stoker.cookbooks.language.merge import warn_of_another_base
from stoker.store.weight_files.tensor_layouts import interleaved

if TYPE_CHECKING:
    from stoker.cookbooks.language.bases import TrainableBase
    from stoker.cookbooks.language.compute.banks import AdapterState


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportArgs(AdapterOverBaseArgs):
    """The adapter, and the precision of the file."""

    dtype: GgufDtype = arg("float32", help="precision of the file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportModelArgs(BaseArgs):
    """The model, and the precision of the file."""

    dtype: GgufDtype = arg("float32", help="precision of the file")


@stage("language/export_adapter", version=1, uses=("gguf", "safetensors", "torch"), foresee=warn_of_another_base)
def export_adapter(job: StageContext, args: ExportArgs) -> GgufFile:
    """Write an adapter as one GGUF file."""
    from stoker.cookbooks.language.bases import read_base
    from stoker.cookbooks.language.peft import over_base, read_adapter

    base = read_base(Path(args.base), name=args.base_name, use="exported")
    if note := warn_of_another_base(args):
        job.tell(note)
    names = [name.removesuffix(".weight") for name in gguf_places(base)]
    adapter = over_base(read_adapter(Path(args.adapter)), names)
    write_gguf_adapter(job.out / GGUF_ADAPTER, base, adapter, args.dtype)
    job.log(f"{len(adapter.weights)} matrices of {base.name}; llama.cpp takes the file as --lora {GGUF_ADAPTER}")
    return job.made(GgufFile)


@stage("language/export_model", version=1, uses=("gguf", "safetensors", "tokenizers", "torch", "transformers"))
def export_model(job: StageContext, args: ExportModelArgs) -> GgufFile:
    """Write a whole model as one GGUF file."""
    from stoker.cookbooks.language.bases import read_base

    base = read_base(Path(args.base), name=args.base_name, use="exported")
    write_gguf_model(job.out / GGUF_MODEL, base, args.dtype, job.step)
    job.log(f"{base.name} in {args.dtype}; llama.cpp takes the file as -m {GGUF_MODEL}")
    return job.made(GgufFile)


def write_gguf_adapter(path: Path, base: TrainableBase, adapter: AdapterState, dtype: GgufDtype) -> None:
    """Write an adapter for llama.cpp. Raises `BadInput` if a matrix is not finite in this precision."""
    import gguf
    import torch

    name, spec, places = GGUF_FAMILIES[base.family][0], adapter.spec, gguf_places(base)
    kind, number = FILE_TYPES[dtype]
    writer = gguf.GGUFWriter(path, name)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    # llama.cpp divides it by the rank.
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, spec.scale * spec.rank)
    writer.add_file_type(number)
    # In the order of GGUF: that of the adapter's file differs from time to time.
    for place in places.values():
        module = place.name.removesuffix(".weight")
        if module not in adapter.weights:
            continue
        a, b = adapter.weights[module]
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
