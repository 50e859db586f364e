from __future__ import annotations

import pytest

from replicax.compat.protocol_buffers import Message, varint
from tests.migrate import bundles


def test_fields_of_all_kinds():
    data = bundles.message((1, 300), (2, "name"), (3, b"\0\xff"), (2, "again"), (4, 7), (5, -1), fixed32=4)
    found = Message(data + bytes([6 << 3 | 1]) + (1 << 60).to_bytes(8, "little"))
    assert (found.unsigned(1), found.text(2), found.all_bytes(2)) == (300, "again", [b"name", b"again"])
    assert (found.all_bytes(3), found.unsigned(4), found.signed(5), found.unsigned(6)) == ([b"\0\xff"], 7, -1, 1 << 60)
    assert (found.unsigned(9), found.text(9), found.messages(9), 9 in found, 1 in found) == (0, "", [], False, True)


def test_messages_in_messages():
    data = bundles.message((1, bundles.message((2, 5))), (1, b""))
    assert [inner.unsigned(2) for inner in Message(data).messages(1)] == [5, 0]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x80", "there is no number at byte 0 of 1"),
        (b"\xff" * 9 + b"\x7f", "there is no number at byte 0"),  # 70 bits
        (b"\x80" * 11 + b"\x01", "there is no number at byte 0"),
        (b"\x0a\x05abc", "the field at byte 0 needs 5 bytes, 3 are there"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "needs 9223372036854775807 bytes, 0 are there"),
        (b"\x0d\1\2", "needs 4 bytes, 2 are there"),
        (b"\x0b", "there is no field at byte 0 of 1"),  # a group
        (b"\x0e", "there is no field at byte 0"),
    ],
)
def test_damaged_messages(data, problem):
    with pytest.raises(ValueError, match=problem):
        Message(data)


def test_fields_of_another_type():
    with pytest.raises(ValueError, match="field 1 should be a number"):
        Message(bundles.message((1, b"x"))).unsigned(1)
    with pytest.raises(ValueError, match="field 1 should be bytes"):
        Message(bundles.message((1, 4))).text(1)


def test_varints_up_to_64_bits():
    for value in (0, 1, 127, 128, 1 << 35, (1 << 64) - 1):
        assert varint(b"x" + bundles.varint(value) + b"y", 1) == (value, 1 + len(bundles.varint(value)))
