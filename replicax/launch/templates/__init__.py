"""Manifests that start the same script on Kubernetes (Job, JobSet), KubeRay, Slurm, Docker Compose and Vertex AI.

Pure functions from the user's options to text. The exit codes in the manifests are those of `replicax.exit_codes`.
"""

from replicax.launch.templates.cluster_job import ClusterJob
from replicax.launch.templates.compose import compose
from replicax.launch.templates.jobset import jobset
from replicax.launch.templates.kuberay import kuberay
from replicax.launch.templates.kubernetes import kubernetes
from replicax.launch.templates.slurm import slurm
from replicax.launch.templates.vertex import vertex

__all__ = ["ClusterJob", "compose", "jobset", "kuberay", "kubernetes", "slurm", "vertex"]
