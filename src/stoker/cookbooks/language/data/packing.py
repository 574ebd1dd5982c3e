"""Putting examples into rows: each into the first row that has room for it. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def pack(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Give rows of places in `lengths`, no row longer than `row_tokens`; every place stands in one row.

    Rows are in the order in which they were begun, and so are the places in a row. Raises `ValueError` for a length
    that no row can hold.
    """
    rows: list[list[int]] = []
    # A tree over the room of all rows that could be needed: a node knows the most room of any row below it.
    leaves = 1 << max(0, len(lengths) - 1).bit_length()
    room = [row_tokens] * (2 * leaves)
    for place, length in enumerate(lengths):
        if not 0 < length <= row_tokens:
            message = f"an example of {length} tokens does not go into a row of {row_tokens}"
            raise ValueError(message)
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < length:
                node += 1
        row = node - leaves
        if row == len(rows):
            rows.append([])
        rows[row].append(place)
        room[node] -= length
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return rows
