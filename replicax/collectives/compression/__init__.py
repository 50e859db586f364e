"""Compression of gradients on the wire, and the memory of what it has not sent yet."""

from replicax.collectives.compression.contract import Compression, Memory, MemoryKind, Reducing, computing_dtype
from replicax.collectives.compression.int8 import Int8
from replicax.collectives.compression.named import BFLOAT16, compression_of, is_of_gradients
from replicax.collectives.compression.power_sgd import PowerSGD

__all__ = [
    "BFLOAT16",
    "Compression",
    "Int8",
    "Memory",
    "MemoryKind",
    "PowerSGD",
    "Reducing",
    "compression_of",
    "computing_dtype",
    "is_of_gradients",
]
