"""The names that statements read and assign, and what leaves them."""

import libcst as cst
import pytest

from replicax.tensorflow.codemod.reading import Flow, Leaving, Mentions, read_first


def statements(code: str) -> list[cst.CSTNode]:
    return list(cst.parse_module(code).body)


@pytest.mark.parametrize(
    ("code", "reads", "assigned"),
    [
        ("a = b.c(d=e)", "be", "a"),
        ("a.b = c", "ca", ""),
        ("a, (b, *c) = d", "d", "abc"),
        ("a[i] += b", "aibai", ""),
        ("a: int = b", "b", "a"),
        ("if (a := b): c", "bc", "a"),
        ("for a in b:\n    c = a\nelse:\n    d = 1", "ba", "acd"),
        ("while a:\n    b = 1\nelse:\n    c = d", "ad", "bc"),
        ("with a as b:\n    c", "ac", "b"),
        ("@a\ndef f(b=c):\n    d = e", "ace", "f"),
        ("@a\nclass C(b, metaclass=c):\n    d = e", "abce", "C"),
        ("import a\nfrom b import c", "", ""),
    ],
)
def test_names(code: str, reads: str, assigned: str):
    flow = Flow.of(statements(code))
    assert ("".join(flow.reads), "".join(flow.assigned)) == (reads, assigned)


def test_mentions_count_assigned_names_too_and_no_members_or_keywords():
    assert Mentions.of(statements("import a\nb.c = d(e=f)")).reads == ["b", "d", "f"]


@pytest.mark.parametrize(
    ("code", "leaves"),
    [
        ("return 1", "return"),
        ("a = yield b", "yield"),
        ("await a", "await"),
        ("break", "break"),
        ("for a in b:\n    break", ""),
        ("while a:\n    continue\nelse:\n    continue", "continue"),
        ("def f():\n    return 1", ""),
        ("a = lambda: (yield)", ""),
        ("class C:\n    def f(self):\n        yield 1", ""),
    ],
)
def test_what_leaves(code: str, leaves: str):
    assert " ".join(Leaving(statements(code)).leaves) == leaves


def test_declarations_of_inner_functions_are_their_own():
    assert Leaving(statements("global a")).declares
    assert Leaving(statements("if a:\n    nonlocal b")).declares
    assert not Leaving(statements("def f():\n    global a")).declares


def test_names_that_may_be_read_before_they_are_assigned():
    assert read_first(statements("a = 1\nb = a")) == set()
    assert read_first(statements("b = a\na = 1")) == {"a"}
    assert read_first(statements("if c:\n    a = 1\nd = a")) == {"a"}
