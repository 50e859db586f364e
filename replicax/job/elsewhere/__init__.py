"""Functions that run on the workers of a cluster for a client elsewhere: standalone clients and submitted jobs."""
