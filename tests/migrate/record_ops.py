"""Records results of TensorFlow's functions for tests/tensorflow/codemod/test_op_numbers.py.

Run with a Python that has TensorFlow 2: ``python tests/migrate/record_ops.py``. Results are kept as text: dtype,
shape and the bytes of each array in base64.
"""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDED = HERE.parent / "codemod" / "recorded" / "ops.json"


def _cases() -> Any:
    spec = importlib.util.spec_from_file_location("op_cases", HERE / "op_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _array(value: Any) -> dict[str, Any]:
    array = value.numpy()
    data = base64.b64encode(array.tobytes()).decode()
    return {"dtype": value.dtype.name, "shape": list(array.shape), "data": data}


def _plain(tf: Any, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(tf, item) for item in value]
    return value if value is None or isinstance(value, bool) else _array(tf.convert_to_tensor(value))


def _optimized(tf: Any, optimizer: Any, gradients: list[list[float]]) -> Any:
    variable = tf.Variable([1.0, -2.0, 3.0])
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
    return tf.identity(variable)


def main() -> None:
    """Writes the file, and says how many results there are."""
    import tensorflow as tf

    cases = _cases()
    names = {"tf": tf, **{name: tf.constant(value) for name, value in cases.inputs().items()}}
    results, wrong = {}, []
    for case in cases.CASES:
        try:
            results[case] = _plain(tf, eval(case, dict(names)))
        except Exception as error:
            wrong.append(f"{case}: {error}")
    if wrong:
        raise SystemExit("\n".join(wrong))
    RECORDED.parent.mkdir(parents=True, exist_ok=True)
    results |= {each: _plain(tf, _optimized(tf, eval(each, {"tf": tf}), cases.GRADIENTS)) for each in cases.OPTIMIZERS}
    lines = [f"{json.dumps(case)}: {json.dumps(result)}" for case, result in results.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(results)} results of TensorFlow {tf.__version__} in {RECORDED}, {RECORDED.stat().st_size} bytes")


if __name__ == "__main__":
    main()
