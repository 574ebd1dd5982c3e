"""Between a grant and its start: fetch what a job needs, or report why that is impossible.

Promises: inputs are verified and linked, never copied twice.
Start with `input_check`, then `prepare_child`.
"""
