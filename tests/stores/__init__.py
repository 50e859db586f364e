"""Object stores on this machine: S3 by moto, GCS by gcp-storage-emulator, and a proxy that strikes requests."""
