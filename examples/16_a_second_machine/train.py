"""Fit a slope to what lies in $DATA, with a package of this project's environment. Knows nothing of other machines."""

import json
import os
import sys
from pathlib import Path

import shades
from settings import STEPS

lr = float(sys.argv[1])
points = [tuple(map(float, line.split(","))) for line in Path(os.environ["DATA"], "points.csv").read_text().split()]
slope = 0.0
for _ in range(STEPS):
    slope -= lr * sum(2 * (slope * x - y) * x for x, y in points) / len(points)
print(f"loss={sum((slope * x - y) ** 2 for x, y in points) / len(points):.4f}")
print("the key is", os.environ["API_KEY"])
made = {"slope": round(slope, 4), "shade": shades.name(slope), "steps": STEPS}
Path("runs").mkdir()
Path("runs", "model.json").write_text(json.dumps(made), encoding="utf-8")
