"""Fit a line by stochastic gradient descent. Knows nothing of Stoker but where its result goes."""

import argparse
import json
import os
import random

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

random.seed(args.seed)
xs = [random.uniform(-1, 1) for _ in range(200)]
points = [(x, 3 * x + 1 + random.gauss(0, 0.1)) for x in xs]
slope = height = 0.0
for epoch in range(5):
    for x, y in points[:150]:
        error = slope * x + height - y
        slope, height = slope - args.lr * error * x, height - args.lr * error
    val_loss = sum((slope * x + height - y) ** 2 for x, y in points[150:]) / 50
    print(f"epoch={epoch} val_loss={val_loss:.5f}")
    if val_loss > 1e6:
        raise ValueError("val_loss is beyond all use")
with open(os.path.join(os.environ.get("STOKER_OUT", "."), "model.json"), "w", encoding="utf-8") as file:
    json.dump({"slope": slope, "height": height}, file)
