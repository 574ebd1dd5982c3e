"""Knows nothing of Stoker but a folder: `name=number` pairs become metrics, and what lies in $STOKER_OUT comes back."""

import json
import os
import sys

lr, w = float(sys.argv[1]), 5.0
for step in range(20):
    w -= lr * 2 * w
    print(f"step={step} loss={w * w:.6f}", flush=True)
with open(os.path.join(os.environ["STOKER_OUT"], "model.json"), "w") as file:
    json.dump({"lr": lr, "w": w}, file)
