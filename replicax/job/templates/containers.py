"""Parts of the manifests of pods."""

from __future__ import annotations

from replicax.job.templates.cluster_job import ClusterJob


def resources(cluster: ClusterJob) -> str:
    """Returns the resources that a worker's container asks for."""
    # No limit on CPU time: a throttled worker would delay all others.
    gpus, memory = f", nvidia.com/gpu: {cluster.gpus}" if cluster.gpus else "", f"memory: {cluster.memory_size}i"
    return f'resources:\n  requests: {{cpu: "{cluster.num_cpus}", {memory}{gpus}}}\n  limits: {{{memory}{gpus}}}'


def indented(text: str, indent: str) -> str:
    """Returns text with each line indented."""
    return "\n".join(f"{indent}{line}" for line in text.splitlines())
