"""Variables whose values live on servers.

`remote.py` gives a variable of Keras's or ours a class that reads and writes its value there, `sharded.py` adds what a
sharded variable can do, and `partition.py` decides how many shards it has.
"""
