"""Keras 2 to Keras 3: names, keywords, callbacks, and the endings of files."""

import importlib

import pytest

from replicax.tensorflow.codemod import tables
from replicax.tensorflow.codemod.rules import Call, Rename
from replicax.tensorflow.codemod.tables import keras_api
from tests.tensorflow.codemod.converted import converted, reasons

HEAD = "import tensorflow as tf\n\n"
MODEL = f"{HEAD}model = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n"


def body(code: str, head: str = HEAD) -> str:
    """Returns a converted line of code."""
    return converted(head + code + "\n").splitlines()[-1]


@pytest.mark.daily(5)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tf.keras.optimizers.SGD(lr=0.1)", "keras.optimizers.SGD(learning_rate=0.1)"),
        ("tf.keras.optimizers.legacy.SGD(0.1, decay=0.0)", "keras.optimizers.SGD(0.1)"),
        ("tf.keras.optimizers.experimental.Adam()", "keras.optimizers.Adam()"),
        ("tf.optimizers.Adam(jit_compile=False)", "keras.optimizers.Adam()"),
        ("tf.keras.losses.Reduction.SUM", '"sum"'),
        (
            "tf.losses.MeanSquaredError(reduction=tf.losses.Reduction.NONE)",
            'keras.losses.MeanSquaredError(reduction="none")',
        ),
        ("tf.keras.losses.mse(a, b)", "keras.losses.mean_squared_error(a, b)"),
        ("tf.keras.metrics.MAE", "keras.metrics.mean_absolute_error"),
        ("tf.metrics.Mean()", "keras.metrics.Mean()"),
        ("tf.keras.layers.experimental.preprocessing.Rescaling(2)", "keras.layers.Rescaling(2)"),
        ("tf.keras.layers.Embedding(9, 2, input_length=3)", "keras.layers.Embedding(9, 2)"),
        ("tf.keras.layers.LeakyReLU(alpha=0.2)", "keras.layers.LeakyReLU(negative_slope=0.2)"),
        ("tf.keras.layers.InputLayer(input_shape=(3,))", "keras.layers.InputLayer(shape=(3,))"),
        ("tf.keras.experimental.CosineDecay(0.1, 9)", "keras.optimizers.schedules.CosineDecay(0.1, 9)"),
        ("tf.keras.callbacks.TensorBoard('logs', write_graph=True)", "rx.keras.TensorBoard('logs')"),
        ("tf.keras.callbacks.BackupAndRestore(backup_dir='b')", "rx.keras.BackupAndRestore(directory='b')"),
        ("tf.random.set_seed(3)", "keras.utils.set_random_seed(3)"),
        ("tf.keras.callbacks.ModelCheckpoint('m')", "keras.callbacks.ModelCheckpoint('m.keras')"),
        ("tf.keras.callbacks.ModelCheckpoint('m.h5')", "keras.callbacks.ModelCheckpoint('m.h5')"),
        (
            "tf.keras.callbacks.ModelCheckpoint(filepath=p, save_weights_only=True)",
            'keras.callbacks.ModelCheckpoint(filepath=p.removesuffix("/").removesuffix(".weights.h5") + ".weights.h5", '
            "save_weights_only=True)",
        ),
    ],
)
def test_an_expression(before, after):
    assert body(f"x = {before}").replace("(\n    ", "(") in (f"x = {after}", after) or _joined(before) == f"x = {after}"


def _joined(before: str) -> str:
    text = converted(f"{HEAD}x = {before}\n")
    return " ".join(line.strip() for line in text.splitlines()).replace("( ", "(").replace(" )", ")").replace(",)", ")")


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model.fit(x, y, workers=2, use_multiprocessing=True)", "model.fit(x, y)"),
        ("model.fit_generator(data, epochs=2)", "model.fit(data, epochs=2)"),
        (
            "model.compile('sgd', 'mse', experimental_steps_per_execution=4)",
            "model.compile('sgd', 'mse', steps_per_execution=4)",
        ),
        ("rate = model.optimizer.lr", "rate = model.optimizer.learning_rate"),
        ("model.save('dir/')", "model.save('dir.keras')"),
        ("model.save('m.keras')", "model.save('m.keras')"),
        ("model.save('m.h5')", "model.save('m.h5')"),
        ("model.save('m', save_format='tf')", "model.save('m.keras')"),
        ("model.save_weights('w')", "model.save_weights('w.weights.h5')"),
        ("model.save(f'{name}-m')", "model.save(f'{name}-m' + \".keras\")"),
        ("rate = tf.keras.backend.get_value(model.optimizer.lr)", "rate = np.asarray(model.optimizer.learning_rate)"),
        (
            "model.load_weights(tf.train.latest_checkpoint(folder))",
            'model.load_weights(max(glob.glob(os.path.join(folder, "*.weights.h5")), key=os.path.getmtime))',
        ),
    ],
)
def test_a_method_of_a_model(before, after):
    text = converted(f"{MODEL}{before}\n").split("\n", 1)[1]
    assert " ".join(line.strip() for line in text.splitlines()).replace("( ", "(").replace(" )", ")") == after


def test_what_a_script_saves_it_loads_under_the_same_name():
    text = f"{MODEL}path = 'saved/'\nmodel.save(path)\nagain = tf.keras.models.load_model(path)\n"
    assert converted(text).splitlines()[-2:] == [
        'model.save(path.rstrip("/") + ".keras")',
        'again = keras.models.load_model(path.rstrip("/") + ".keras")',
    ]


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    "code",
    [
        "tf.keras.optimizers.SGD(0.1, decay=0.01)",
        "tf.keras.backend.mean(x)",
        "tf.keras.backend.set_learning_phase(1)",
        "tf.keras.layers.DenseFeatures(c)",
        "tf.keras.experimental.LinearModel()",
        "tf.keras.models.load_model('elsewhere')",
        "tf.keras.preprocessing.image.ImageDataGenerator()",
        "model.add_metric(x)",
        "model.metrics_names",
        "model.load_weights('tf-checkpoint')",
        "model.save('m', signatures=s)",
        "model.save('m', save_format='h5')",
    ],
)
def test_what_has_no_counterpart_is_refused(code):
    (reason,) = reasons(f"{MODEL}x = {code}\n")
    assert reason.startswith("4 ")


def test_every_new_name_exists():
    rules = {name: rule for name, rule in keras_api.RULES.items() if isinstance(rule, (Rename, Call))}
    assert [rule.target for rule in rules.values() if not _exists(rule.target)] == []
    assert all(tables.lookup(name) is not None for name in rules)


def _exists(target: str) -> bool:
    module, *parts = target.split(".")
    found: object = importlib.import_module(module)
    for each in parts:
        if not hasattr(found, each):
            found = importlib.import_module(f"{found.__name__}.{each}") if hasattr(found, "__path__") else None
            continue
        found = getattr(found, each)
    return found is not None
