"""The peers that replicax is compared with, each as a program of its own; `against_peers.py` is the command."""
