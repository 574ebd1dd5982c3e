"""A job from request to result: builder, job folder, sweeps, reruns, comparison, packing of code and data.

Promises: the same request gives the same ids; all diagnostics are reported at once.
Start with `request` and `builder`, then `execution` or `submission`.
"""
