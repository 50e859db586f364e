"""Tools around a training: plots, trackers, tuning, notebooks, profiling, progress, and the doctor."""
