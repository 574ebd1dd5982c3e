"""Keras on its torch backend: `fit` as it prints, a checkpoint after every epoch."""

from __future__ import annotations

import argparse
import os
import re

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--checkpoints", default="runs")
parser.add_argument("--resume")
args = parser.parse_args()

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).uniform(0, 6, (4096, 1)).astype("float32")
y = (np.sin(x) > 0).astype("float32")
initial_epoch = 0
if args.resume:
    model = keras.models.load_model(args.resume)
    initial_epoch = int(re.findall(r"\d+", args.resume)[-1])
    print(f"continuing after epoch {initial_epoch}")
else:
    layers = keras.layers
    model = keras.Sequential([layers.Input((1,)), layers.Dense(32, "relu"), layers.Dense(1, "sigmoid")])
    model.compile(keras.optimizers.Adam(args.lr), "binary_crossentropy", metrics=["accuracy"])
os.makedirs(args.checkpoints, exist_ok=True)
model.fit(
    x,
    y,
    validation_split=0.2,
    epochs=args.epochs,
    initial_epoch=initial_epoch,
    verbose=2,
    callbacks=[keras.callbacks.ModelCheckpoint(os.path.join(args.checkpoints, "model-{epoch:03d}.keras"))],
)
