"""Export a folder of transformers to ONNX, with any length, the logits and the output of each layer.

python onnx_export.py FOLDER FILE
"""

import sys

import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager").eval()


class Exported(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model

    def forward(self, input_ids):
        kept = []
        hooks = [
            layer.register_forward_hook(lambda _module, _args, made: kept.append(made)) for layer in model.model.layers
        ]
        logits = self.inner(input_ids=input_ids, use_cache=False).logits
        for hook in hooks:
            hook.remove()
        return (logits, *(one[0] if isinstance(one, tuple) else one for one in kept))


count = model.config.num_hidden_layers
torch.onnx.export(
    Exported(),
    (torch.arange(8).reshape(1, 8),),
    sys.argv[2],
    dynamo=True,
    input_names=["input_ids"],
    output_names=["logits", *(f"l_out-{number}" for number in range(count))],
    dynamic_shapes={"input_ids": {1: torch.export.Dim("length", min=2, max=4096)}},
)
