"""Chooses the token of a cluster: only who knows it may run code there. Ray checks it."""

from __future__ import annotations

from pathlib import Path

from replicax.checks.environment_names import INSECURE, TOKEN
from replicax.cluster.environment import Environ, text
from replicax.cluster.signing import TOKEN_BYTES, new_token
from replicax.errors import ClusterError

MODE, RAY_TOKEN, RAY_TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_YES = ("1", "true", "yes", "on")
_CURE = (
    f"Make one (python -c 'import secrets; print(secrets.token_hex({TOKEN_BYTES}))') and set it as {TOKEN} for all "
    f"tasks and the coordinator. {INSECURE}=1 does without: then whoever reaches the ports can run code on the "
    "machines."
)


def own_token(environ: Environ) -> dict[str, str]:
    """Returns Ray's variables for a cluster that this process starts for itself: with a new token if there is none."""
    return _given(environ) or {MODE: "token", RAY_TOKEN: new_token()}


def shared_token(environ: Environ) -> dict[str, str]:
    """Returns Ray's variables for a cluster whose tasks are started one by one."""
    given = _given(environ)
    if given is None:
        raise ClusterError(TOKEN, None, "is not set: the tasks of a cluster must share a secret", _CURE)
    return given


def optional_token(environ: Environ) -> dict[str, str]:
    """Returns Ray's variables for a cluster that others have started: if no token is given, Ray's own ways decide."""
    return _given(environ) or {}


def _given(environ: Environ) -> dict[str, str] | None:
    """Returns what the user has decided; None if nothing. Ray's own variables come first."""
    if (text(environ, INSECURE) or "").lower() in _YES or text(environ, MODE) == "disabled":
        return {MODE: "disabled"}
    if text(environ, RAY_TOKEN) or text(environ, RAY_TOKEN_PATH):
        return {MODE: "token"}
    token = text(environ, TOKEN)
    if token is not None:
        return {MODE: "token", RAY_TOKEN: token}
    return {MODE: "token"} if _file(environ).is_file() else None


def _file(environ: Environ) -> Path:
    """Returns where `ray get-auth-token --generate` keeps a user's token."""
    return Path(environ.get("HOME") or "/") / ".ray" / "auth_token"
