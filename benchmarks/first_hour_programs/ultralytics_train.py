"""Ultralytics: a detector built from its own yaml, without weights, on a few images drawn here."""

from __future__ import annotations

import argparse
import os

import numpy as np
from PIL import Image
from ultralytics import YOLO

parser = argparse.ArgumentParser()
parser.add_argument("--lr0", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--project", default="runs")
parser.add_argument("--resume")
args = parser.parse_args()

random = np.random.default_rng(0)
for part in ("train", "val"):
    for kind in ("images", "labels"):
        os.makedirs(f"squares/{kind}/{part}", exist_ok=True)
    for number in range(16):
        picture = np.full((64, 64, 3), 40, dtype="uint8")
        left, top = random.integers(4, 36, 2)
        picture[top : top + 24, left : left + 24] = 220
        Image.fromarray(picture).save(f"squares/images/{part}/{number}.png")
        with open(f"squares/labels/{part}/{number}.txt", "w") as label:
            label.write(f"0 {(left + 12) / 64} {(top + 12) / 64} {24 / 64} {24 / 64}\n")
with open("squares/data.yaml", "w") as described:
    described.write(f"path: {os.path.abspath('squares')}\ntrain: images/train\nval: images/val\nnames: [square]\n")

if args.resume:
    YOLO(args.resume).train(resume=True)
else:
    YOLO("yolov8n.yaml").train(
        data="squares/data.yaml",
        epochs=args.epochs,
        imgsz=64,
        batch=8,
        workers=0,
        device="cpu",
        optimizer="SGD",
        lr0=args.lr0,
        project=os.path.abspath(args.project),
        name="squares",
        exist_ok=True,
        plots=False,
    )
