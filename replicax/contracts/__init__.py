"""The contracts between rooms: the host of a program (a strategy), placements, variables, groups."""
