"""A JobSet of Kubernetes: the workers of the Indexed Job, all of which start again together."""

from __future__ import annotations

from replicax.job.templates.cluster_job import ClusterJob
from replicax.job.templates.kubernetes import TO_ADD, indexed_job, secret
from replicax.job.templates.manifests import manifests

_HEADER = """\
# kubectl apply -f this-file.yaml        (Kubernetes 1.29 or newer, with the JobSet controller 0.6 or newer)
# kubectl logs -f -l jobset.sigs.k8s.io/jobset-name={name} --prefix
"""
_GROUP = "workers"


def jobset(cluster: ClusterJob, token: str) -> str:
    """Returns the manifests of a JobSet and of its secret. The controller itself makes the service with pod names."""
    cluster.check_image()
    job = indexed_job(cluster, f"{cluster.name}-{_GROUP}-0")
    del job["spec"]["template"]["spec"]["subdomain"]  # The controller sets it.
    group = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": cluster.name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": cluster.restarts,  # Of the whole Job, once a worker has failed too often in it.
                # The pods' own policy ends a job whose options or programs are wrong: they would be wrong again.
                "rules": [
                    {"name": "wrong", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
                ],
            },
            "replicatedJobs": [{"name": _GROUP, "replicas": 1, "template": {"spec": job["spec"]}}],
        },
    }
    header = _HEADER.format(name=cluster.name) + TO_ADD.format(package="replicax")
    return manifests(header, secret(cluster, token), group)
