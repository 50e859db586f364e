"""Strategies for slow wires: islands of devices that train alone and meet from time to time."""
