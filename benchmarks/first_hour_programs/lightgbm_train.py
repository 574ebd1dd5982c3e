"""LightGBM with the evaluation that it logs."""

from __future__ import annotations

import argparse

import lightgbm as lgb
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float, default=0.1)
args = parser.parse_args()

random = np.random.default_rng(0)
x = random.uniform(-1, 1, (5000, 20))
y = x[:, 0] * x[:, 1] + 0.1 * random.normal(size=len(x))
train = lgb.Dataset(x[:4000], y[:4000])
valid = lgb.Dataset(x[4000:], y[4000:], reference=train)
lgb.train(
    {"objective": "regression", "metric": ["l2", "l1"], "learning_rate": args.learning_rate},
    train,
    num_boost_round=60,
    valid_sets=[train, valid],
    valid_names=["train", "valid"],
    callbacks=[lgb.log_evaluation(10), lgb.early_stopping(20)],
)
