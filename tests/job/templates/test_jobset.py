"""The manifest of a JobSet: its Job is that of the Indexed Job, with the names that the controller gives to pods."""

from __future__ import annotations

import pytest
import yaml

from replicax.errors import LaunchError
from replicax.job.templates import ClusterJob, jobset, kubernetes


def test_the_job_is_the_indexed_job_with_other_names():
    cluster = ClusterJob("train.py", ("--epochs", "3"), name="my-job", workers=3, restarts=5, image="i")
    secret, manifest = yaml.safe_load_all(jobset(cluster, "secret"))
    _, same_secret, job = yaml.safe_load_all(kubernetes(cluster, "secret"))
    assert secret == same_secret
    assert manifest["kind"] == "JobSet"
    assert manifest["spec"]["failurePolicy"]["maxRestarts"] == 5
    (group,) = manifest["spec"]["replicatedJobs"]
    found, expected = group["template"]["spec"], job["spec"]
    del expected["template"]["spec"]["subdomain"]
    (script,) = found["template"]["spec"]["containers"][0].pop("args")
    (other,) = expected["template"]["spec"]["containers"][0].pop("args")
    assert found == expected
    for index in range(3):
        assert f'"my-job-workers-0-{index}.my-job:12345"' in script
    assert script.replace("my-job-workers-0-", "my-job-") == other


def test_it_needs_an_image():
    with pytest.raises(LaunchError, match="--image must name a container image"):
        jobset(ClusterJob("train.py"), "")
