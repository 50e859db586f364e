"""Manifests that start the same script on Kubernetes (Job, JobSet), KubeRay, Slurm, Docker Compose, Vertex AI and GCE.

Pure functions from the user's options to text. The exit codes in the manifests are those of
`replicax.errors.exit_codes`.
"""

from replicax.job.templates.cluster_job import ClusterJob
from replicax.job.templates.compose import compose
from replicax.job.templates.gce import gce
from replicax.job.templates.jobset import jobset
from replicax.job.templates.kuberay import kuberay
from replicax.job.templates.kubernetes import kubernetes
from replicax.job.templates.slurm import slurm
from replicax.job.templates.vertex import vertex

__all__ = ["ClusterJob", "compose", "gce", "jobset", "kuberay", "kubernetes", "slurm", "vertex"]
