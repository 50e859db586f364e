"""Steps worked off in a fixed number of blocks of rows, so that their bits do not depend on the devices."""
