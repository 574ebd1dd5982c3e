"""Prove that results are right: fixtures, reference runs, comparisons, receipts, benchmarks and regression gates."""
