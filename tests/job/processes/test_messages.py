"""Who is told from whom by what processes say of themselves."""

from __future__ import annotations

import dataclasses

from replicax.job.elsewhere.messages import Client


def test_of_a_process_on_another_machine_nobody_knows_that_it_is_gone():
    here = Client.here()
    assert not here.is_gone()
    gone = dataclasses.replace(here, pid=2**22 + 1)  # A larger number than the system gives.
    assert gone.is_gone()
    assert not dataclasses.replace(gone, host="elsewhere").is_gone()
