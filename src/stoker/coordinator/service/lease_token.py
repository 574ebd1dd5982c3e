"""An attempt's token in a request's address: whoever sends bytes says by it for which lease they are.

async def put(self, token: LeaseToken, …) -> Response:    /v1/attempts/{job}/…?attempt=1&epoch=2&generation=0
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from stoker.model.leases import Token

LAST = 2**53
"""The largest whole number that every JSON reader keeps."""

Number = Annotated[int, Query(ge=1, le=2**31 - 1)]
"""Of an attempt."""


def _token(
    job: str,
    attempt: Number,
    epoch: Annotated[int, Query(ge=1, le=LAST)],
    generation: Annotated[int, Query(ge=0, le=LAST)],
) -> Token:
    return Token(job=job, attempt=attempt, epoch=epoch, generation=generation)


LeaseToken = Annotated[Token, Depends(_token)]
