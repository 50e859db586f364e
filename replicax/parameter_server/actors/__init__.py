"""What runs in the processes of workers and servers, and the messages they understand."""
