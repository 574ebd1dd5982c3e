"""Names that people give: of jobs, which become folders, and of nodes, which stand in lists and addresses."""

from __future__ import annotations

LONGEST_NAME = 100
JOB_NAME_RULE = f"letters, digits, and - _ . = , inside; at most {LONGEST_NAME} of them"
_MARKS = dict.fromkeys(map(ord, "-_.=,"))
NODE_NAME_RULE = f"letters and digits of ASCII, and . _ - inside; at most {LONGEST_NAME} of them"


def is_job_name(name: str) -> bool:
    """Say whether a job may be called so: its name is a folder's, and `last` means another one."""
    return (
        0 < len(name) <= LONGEST_NAME
        and name not in (".", "..", "last")
        and name[0] != "-"
        and (name.isalnum() or not name.translate(_MARKS) or name.translate(_MARKS).isalnum())
    )


def point_name(name: str, number: int) -> str:
    """Give what people call a job: `resnet`, or `resnet/3` for a point of a sweep."""
    return f"{name}/{number}" if number else name


def is_node_name(name: str) -> bool:
    """Say whether a node may be called so."""
    return (
        0 < len(name) <= LONGEST_NAME
        and name.isascii()
        and name[0].isalnum()
        and all(char.isalnum() or char in "._-" for char in name)
    )
