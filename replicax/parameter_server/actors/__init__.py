"""The code that runs in the processes of workers and servers, and the messages that they exchange.

`worker.py` and `parameter_server.py` are the two actors. They have no user code but the functions that make datasets
and resources (`worker_data.py`), which arrive pickled, and the halves of steps, which arrive as StableHLO
(`worker_program.py`). `messages.py` has everything that is sent between processes, and `actor_errors.py` brings errors
to the coordinator with their types.
"""
