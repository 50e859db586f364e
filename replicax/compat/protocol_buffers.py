"""Protocol buffers on the wire, as TensorFlow's checkpoints and XLA's files have them.

Whatever is wrong with one is a `ValueError`.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns an unsigned number of variable length and the position behind it."""
    value = 0
    for i, byte in enumerate(data[position : position + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if value >> 64:
                break
            return value, position + i + 1
    raise ValueError(f"there is no number at byte {position} of {len(data)}")


def signed(value: int) -> int:
    """Returns a number that is stored as the two's complement of 64 bits."""
    return value - (1 << 64) if value >> 63 else value


class Message:
    """The fields of a protocol buffer by number. As the format has it, the last of several values counts."""

    def __init__(self, data: bytes):
        self._fields: dict[int, list[int | bytes]] = {}
        for number, value in _fields(data):
            self._fields.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def unsigned(self, number: int) -> int:
        """Returns the value of a field of whole numbers; 0 if it is absent."""
        values = self._fields.get(number, [0])
        if not isinstance(values[-1], int):
            raise ValueError(f"field {number} should be a number")
        return values[-1]

    def signed(self, number: int) -> int:
        """Returns the value of a field of whole numbers that may be negative; 0 if it is absent."""
        return signed(self.unsigned(number))

    def all_bytes(self, number: int) -> list[bytes]:
        """Returns all values of a field of bytes."""
        values = self._fields.get(number, [])
        found = [value for value in values if isinstance(value, bytes)]
        if len(found) < len(values):
            raise ValueError(f"field {number} should be bytes")
        return found

    def messages(self, number: int) -> list[Message]:
        """Returns all values of a field of messages."""
        return [Message(value) for value in self.all_bytes(number)]

    def text(self, number: int) -> str:
        """Returns the value of a field of text; empty if it is absent."""
        return (self.all_bytes(number) or [b""])[-1].decode()


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(data):
        tag, begin = varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, end = varint(data, begin)
            yield number, value
        else:
            if kind == _BYTES:
                length, begin = varint(data, begin)
            elif kind in (_FIXED64, _FIXED32):
                length = 8 if kind == _FIXED64 else 4
            else:
                raise ValueError(f"there is no field at byte {position} of {len(data)}")
            end = begin + length
            if end > len(data):
                raise ValueError(f"the field at byte {position} needs {length} bytes, {len(data) - begin} are there")
            part = data[begin:end]
            yield number, part if kind == _BYTES else int.from_bytes(part, "little")
        position = end
