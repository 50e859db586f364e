import textwrap

import pytest
from proselint.registry import CheckRegistry

from tests.prose import Prose, checks, faults_in, prose_of_module, prose_of_page


@pytest.fixture(autouse=True, scope="module")
def registered():
    CheckRegistry().register_many(tuple(checks()))


def test_a_page_is_read_without_its_code_and_the_targets_of_its_links():
    page = "A `nest` is [here](nest.md).\n\n```python\nnest = 1\n```\nA nest.\n"
    (prose,) = prose_of_page(page)
    assert [line for line, message in faults_in(prose) if "nest" in message] == [6]


def test_a_module_is_read_with_its_docstrings_comments_and_messages():
    module = textwrap.dedent('''
        """A nest of arrays, as a docstring says."""
        nest = 1  # a nest in a comment
        key = "nest"
        error = f"Got {nest!r}, which is no nest of arrays."
    ''')
    found = [line for prose in prose_of_module(module) for line, message in faults_in(prose) if "pytree" in message]
    assert sorted(found) == [2, 3, 5]


@pytest.mark.parametrize("text", ["It waits for ever.", "It is told to go.", "This is is very unique."])
def test_words_that_are_not_ours_are_faults(text):
    assert list(faults_in(Prose(1, text))) != []


@pytest.mark.parametrize(
    "text", ["What a worker has done.", "It ends. Who waits is told.", "First.\n\nWhat it says: no."]
)
def test_a_statement_that_begins_like_a_question_is_a_fault(text):
    assert ["put its subject first" in message for _, message in faults_in(Prose(1, text))] == [True]


def test_a_question_is_none():
    assert list(faults_in(Prose(1, "What does a worker do? Where there is none, nothing happens."))) == []


def test_plain_prose_has_no_faults():
    assert list(faults_in(Prose(1, "Each replica gets one shard of the global batch."))) == []
