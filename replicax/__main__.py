"""`python -m replicax` is the command `replicax`."""

from replicax.cli import main

if __name__ == "__main__":
    main()
