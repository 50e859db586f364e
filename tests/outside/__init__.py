"""Public programs, ported: each is compared with one device."""
