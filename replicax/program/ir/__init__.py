"""Traced programs as data: evaluating, searching and moving their equations."""
