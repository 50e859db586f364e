"""Manifests that start the same script on real clusters: Kubernetes (Job, JobSet), KubeRay, Slurm, Docker Compose.

Pure functions from the user's options to text. The exit codes in the manifests are those of `replicax.exit_codes`.
"""

from replicax.launch.templates.cluster_job import ClusterJob
from replicax.launch.templates.compose import compose
from replicax.launch.templates.jobset import jobset
from replicax.launch.templates.kuberay import kuberay
from replicax.launch.templates.kubernetes import kubernetes
from replicax.launch.templates.slurm import slurm

__all__ = ["ClusterJob", "compose", "jobset", "kuberay", "kubernetes", "slurm"]
