"""A scikit-learn training that prints what the library prints by itself."""

from __future__ import annotations

import sys

from sklearn.datasets import load_digits
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.neural_network import MLPClassifier

rows, labels = load_digits(return_X_y=True)
rate = float(sys.argv[1])
GradientBoostingClassifier(n_estimators=5, learning_rate=rate, verbose=2).fit(rows[:400], labels[:400])
MLPClassifier((16,), learning_rate_init=rate, max_iter=5, early_stopping=True, verbose=True).fit(rows, labels)
