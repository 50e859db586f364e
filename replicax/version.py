"""The version: here, and nowhere else. The packaging reads this file."""

__version__ = "0.1.0"
