"""From a scheduled function to the programs that workers and servers run."""
