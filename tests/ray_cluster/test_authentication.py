from __future__ import annotations

import pytest

from replicax.errors import ClusterError
from replicax.ray_cluster.authentication import new_token, optional_token, own_token, shared_token


@pytest.mark.parametrize("decide", [own_token, shared_token, optional_token])
@pytest.mark.parametrize(
    ("environ", "variables"),
    [
        ({"REPLICAX_TOKEN": "mine"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "mine"}),
        ({"RAY_AUTH_TOKEN": "ray's", "REPLICAX_TOKEN": "mine"}, {"RAY_AUTH_MODE": "token"}),
        ({"RAY_AUTH_TOKEN_PATH": "/some/file"}, {"RAY_AUTH_MODE": "token"}),
        ({"REPLICAX_INSECURE": "1", "REPLICAX_TOKEN": "mine"}, {"RAY_AUTH_MODE": "disabled"}),
        ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "disabled"}),
    ],
)
def test_what_the_user_has_decided_holds_everywhere(decide, environ, variables):
    assert decide({"HOME": "/nonexistent", **environ}) == variables


def test_a_cluster_of_its_own_gets_a_new_token():
    first, second = own_token({"HOME": "/nonexistent"}), own_token({"HOME": "/nonexistent", "REPLICAX_INSECURE": "0"})
    assert first["RAY_AUTH_MODE"] == "token"
    assert len(first["RAY_AUTH_TOKEN"]) == 32
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]
    assert new_token() != new_token()


def test_tasks_that_are_started_one_by_one_need_a_token():
    with pytest.raises(ClusterError, match=r"REPLICAX_TOKEN is not set.*secrets.token_hex.*REPLICAX_INSECURE=1"):
        shared_token({"HOME": "/nonexistent"})
    assert optional_token({"HOME": "/nonexistent"}) == {}


def test_the_file_that_ray_makes_counts_as_a_token(tmp_path):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    assert shared_token({"HOME": str(tmp_path)}) == {"RAY_AUTH_MODE": "token"}
