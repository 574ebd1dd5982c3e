"""Find a square root by gradient descent, and print how far it is off."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
lr = parser.parse_args().lr

guess = 1.0
for step in range(20):
    guess -= lr * 2 * (guess**2 - 2.0) * 2 * guess
    print(f"step={step} loss={(guess**2 - 2.0) ** 2:.6f}")
