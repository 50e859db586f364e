"""TF_CONFIG: the JSON variable that describes TensorFlow's clusters."""

from __future__ import annotations

import difflib
import json
import re

from replicax.checks import is_int
from replicax.cluster.config import ClusterConfig, check_roles
from replicax.cluster.environment import Environ, text
from replicax.cluster.resolvers.base import ClusterResolver, Verdict
from replicax.cluster.spec import ClusterSpec
from replicax.errors import ClusterError

_NAME = "TF_CONFIG"
_KEYS = ("cluster", "task", "rpc_layer", "environment", "session_master", "model_dir")
_FORM = (
    'Write {"cluster": {"worker": ["host0:port", "host1:port"]}, "task": {"type": "worker", "index": 0}}, with the '
    "index of each process."
)


class TFConfigClusterResolver(ClusterResolver):
    """Reads `TF_CONFIG`, again on every access.

    Args:
        task_type: Job of this process; by default what TF_CONFIG says.
        task_id: Index of this process in its job; by default what TF_CONFIG says.
        rpc_layer: Prefix of addresses; by default what TF_CONFIG says.
        environment: A label for the environment. (TF_CONFIG's own is not read, as in TensorFlow.)
        environ: The environment variables; by default `os.environ`.

    Example:
        >>> tf_config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
        >>> resolver = rx.cluster_resolver.TFConfigClusterResolver(environ={"TF_CONFIG": tf_config})
        >>> resolver.task_type, resolver.task_id
        ('worker', 1)
    """

    name = _NAME

    @classmethod
    def applies(cls, environ: Environ) -> Verdict:
        if text(environ, _NAME) is None:
            return Verdict(False, f"{_NAME} is not set")
        try:
            config = cls(environ=environ).config()
        except ClusterError:
            return Verdict(True, f"{_NAME} is set")  # Reading it will say what is wrong.
        return Verdict(True, f"{_NAME} is set") if config.spec else Verdict(False, f"{_NAME} names no cluster")

    def cluster_spec(self) -> ClusterSpec:
        spec = ClusterSpec.from_json(self._section("cluster"), f"{_NAME} cluster")
        check_roles(spec, f"{_NAME} cluster")
        return spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        session_master = self._document().get("session_master")
        if session_master is not None:
            if not isinstance(session_master, str):
                raise ClusterError(f"{_NAME} session_master", session_master, "must be a string", "Or leave it out.")
            return session_master
        spec = self.cluster_spec()
        if sum(spec.num_tasks(job) for job in spec.jobs) <= 1:
            return ""
        return super().master(task_type, task_id, rpc_layer)

    def config(self) -> ClusterConfig:
        document = self._document()
        if "cluster" not in document and self._section("task"):
            raise ClusterError(
                f"{_NAME} cluster",
                None,
                "is missing, though there is a task: every process would train alone",
                f"{_FORM} For a program of one process, leave {_NAME} out.",
            )
        return super().config()

    def model_dir(self) -> str | None:
        """Returns the folder of an estimator's checkpoints, if TF_CONFIG tells one.

        Raises:
            ClusterError: It is no string, or empty.
        """
        path = self._document().get("model_dir")
        if path is not None and (not isinstance(path, str) or not path):
            raise ClusterError(
                f"{_NAME} model_dir", path, "must be the path of a folder, not empty", "Or leave it out."
            )
        return path

    def _told_type(self) -> str | None:
        task = self._section("task")
        task_type = task.get("type")
        if not task or isinstance(task_type, str):
            return task_type if isinstance(task_type, str) else None
        shown = "null" if task_type is None and "type" in task else task_type
        raise ClusterError(f"{_NAME} task.type", shown, "is missing or not a string", _FORM)

    def _told_id(self) -> int | None:
        task = self._section("task")
        if not task:
            return None
        index = task.get("index")
        if isinstance(index, str) and re.fullmatch(r"[0-9]{1,9}", index):
            return int(index)
        if not is_int(index) or index < 0:
            shown = "null" if index is None and "index" in task else index
            raise ClusterError(f"{_NAME} task.index", shown, "is missing or not an int of at least 0", _FORM)
        return index

    def _told_rpc_layer(self) -> str | None:
        layer = self._document().get("rpc_layer")
        if layer is not None and not isinstance(layer, str):
            raise ClusterError(f"{_NAME} rpc_layer", layer, "must be a string", "Such as 'grpc', or leave it out.")
        return layer

    def _section(self, key: str) -> dict[str, object]:
        section = self._document().get(key, {})
        if not isinstance(section, dict):
            raise ClusterError(f"{_NAME} {key}", "null" if section is None else section, "must be an object", _FORM)
        return section

    def _document(self) -> dict[str, object]:
        written = text(self._environ, _NAME)
        document = {} if written is None else _parse(written)
        if not isinstance(document, dict):
            raise ClusterError(_NAME, written, "must be a JSON object", _FORM)
        for key in document.keys() - set(_KEYS):
            # Platforms add keys of their own, so only likely misspellings are errors.
            meant = difflib.get_close_matches(key.lower(), _KEYS, 1, 0.8)
            if meant and meant[0] not in document:
                raise ClusterError(f"{_NAME} {key}", key, "is not a known key", f"Write {meant[0]!r}.")
        return document


def _parse(written: str) -> object:
    try:
        return json.loads(written, object_pairs_hook=_without_repeated_keys)
    except json.JSONDecodeError as error:
        raise ClusterError(
            _NAME,
            written,
            f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            "JSON takes double quotes, no comma after the last item, and no comments; json.dumps writes it.",
        ) from None
    except RecursionError:
        raise ClusterError(_NAME, written, "is not a cluster: it is nested too deeply", _FORM) from None
    except ClusterError:
        raise
    except ValueError as error:  # Such as a number of thousands of digits.
        raise ClusterError(_NAME, written, f"cannot be read: {error}", _FORM) from None


def _without_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    section = dict(pairs)
    if len(section) < len(pairs):
        names = [key for key, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ClusterError(f"{_NAME} {double}", double, "is a key that comes twice in one object", "Merge the two.")
    return section
