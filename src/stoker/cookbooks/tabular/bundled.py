"""The data sets that ship inside scikit-learn, by the names a user types."""

from __future__ import annotations

from typing import Final, Literal, get_args

BundledName = Literal["breast_cancer", "wine", "iris", "digits", "diabetes"]

BUNDLED: Final[tuple[str, ...]] = get_args(BundledName)
