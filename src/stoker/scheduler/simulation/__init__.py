"""Run the scheduler on a simulated clock: workloads, forecasts, reports.

Promises: the same decisions as the coordinator's for the same input.
Start with `simulator`.
"""
