"""Words of workers: what is too much of them is refused before anybody looks at it."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stoker.core.job import InputKind, JobInput
from stoker.protocol.job_messages import INPUT_BODY
from stoker.protocol.lease_messages import LeaseReport, Renewal


def test_a_heartbeat_has_no_more_leases_than_a_machine_has_slots():
    lease = LeaseReport(job="a" * 64, attempt=1, epoch=1, generation=1)
    assert len(Renewal(worker="desk", incarnation="start-one", leases=(lease,) * 4096).leases) == 4096
    with pytest.raises(ValidationError, match="at most 4096"):
        Renewal(worker="desk", incarnation="start-one", leases=(lease,) * 4097)


@pytest.mark.parametrize("name", ["/etc/shadow", "../x", "a/b", ".", "..", "a\0b"], ids=range(6))
def test_the_name_of_an_input_leads_nowhere_else(name: str) -> None:
    with pytest.raises(ValueError, match="not a file name"):
        INPUT_BODY.validate_python(JobInput(where="arg:data", kind=InputKind.FILE, tree="0" * 64, name=name))
    good = JobInput(where="arg:data", kind=InputKind.FILE, tree="0" * 64, name="..rows.csv")
    assert INPUT_BODY.validate_python(good) == good
