"""Random numbers by rows: what replicas draw together is what one device draws for the global batch."""
