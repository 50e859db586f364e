"""Workers on other machines: an agent of Ray starts each process there and sends its events to the client."""
