"""Tests on several hosts: network namespaces of this machine, with names, addresses and cables of their own."""
