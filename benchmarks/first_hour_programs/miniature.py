"""A miniature of a trainer that prints and saves as well-known ones do, for the smoke run: no library is needed."""

from __future__ import annotations

import argparse
import os
import time
import zipfile

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--out_dir", default="runs")
parser.add_argument("--init_from", default="scratch")
asked = parser.parse_args()
path = os.path.join(asked.out_dir, "ckpt.pt")
step = 0
if asked.init_from == "resume":
    with zipfile.ZipFile(path) as kept:
        step = int(kept.read("step"))
os.makedirs(asked.out_dir, exist_ok=True)
while step < asked.steps:
    step += 1
    time.sleep(0.1 if step > 10 else 0.01)
    loss = 1 / (1 + asked.lr * step)
    print(f"iter {step}: loss {loss:.4f}, time 100.00ms")
    if step % 10 == 0:
        print(f"step {step}: train loss {loss:.4f}, val loss {loss * 1.1:.4f}")
        with zipfile.ZipFile(path, "w") as saved:
            saved.writestr("step", str(step))
