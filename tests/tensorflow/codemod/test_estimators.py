"""Scripts of tf.estimator: model functions of TensorFlow 1, hooks, and what is refused."""

from tests.tensorflow.codemod.converted import converted, reasons

HEAD = """
import tensorflow as tf
import tensorflow.compat.v1 as tf1
"""
MODEL = """
def model_fn(features, labels, mode):
    logits = tf1.layers.Dense(1)(features)
    loss = {loss}
    optimizer = tf1.train.AdagradOptimizer(0.05)
    train_op = optimizer.minimize({minimized}, global_step=tf1.train.get_global_step())
    return tf1.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
"""
MEAN = "tf1.losses.mean_squared_error(labels=labels, predictions=logits)"


def test_an_optimizer_that_minimizes_the_loss_is_given_to_the_spec():
    assert converted(HEAD + MODEL.format(loss=MEAN, minimized="loss")) == (
        """def model_fn(features, labels, mode):
    logits = keras.layers.Dense(1)(features)
    loss = keras.ops.mean(keras.ops.square(keras.ops.subtract(logits, labels)))
    optimizer = keras.optimizers.Adagrad(0.05, epsilon=0.0)
    return rx.estimator.EstimatorSpec(mode, loss=loss, optimizer=optimizer)
"""
    )


def test_a_sum_is_said_to_be_one():
    after = converted(HEAD + MODEL.format(loss="tf.reduce_sum(tf.square(logits - labels)) / 32", minimized="loss"))
    assert 'optimizer=optimizer, loss_reduction="sum"' in after


def test_a_loss_of_unknown_reduction_is_refused():
    (reason,) = [each for each in reasons(HEAD + MODEL.format(loss="f(logits)", minimized="loss")) if "Spec" in each]
    assert "a mean over rows or a sum" in reason


def test_an_optimizer_of_another_loss_is_refused():
    found = reasons(HEAD + MODEL.format(loss=MEAN, minimized="loss + 1.0"))
    assert any("of the same loss" in each for each in found)


def test_an_update_in_the_spec_itself():
    text = """
def model_fn(features, labels, mode):
    loss = tf.reduce_mean(features)
    optimizer = tf1.train.GradientDescentOptimizer(0.1)
    return tf.estimator.EstimatorSpec(
        mode=mode, loss=loss, train_op=optimizer.minimize(loss, tf1.train.get_or_create_global_step()))
"""
    assert "EstimatorSpec(mode=mode, loss=loss, optimizer=optimizer)" in converted(HEAD + text)


def test_hooks_of_sessions_become_hooks():
    text = """
class Log(tf1.train.SessionRunHook):
    def begin(self):
        self.step = 0

    def before_run(self, run_context):
        self.step += 1

    def after_run(self, run_context, run_values):
        print(self.step)
"""
    after = converted(HEAD + text)
    assert "class Log(rx.estimator.Hook):" in after
    assert [line.strip() for line in after.splitlines() if "def " in line] == [
        "def begin(self, context):",
        "def before_step(self, context):",
        "def after_step(self, context):",
    ]


def test_a_hook_that_reads_a_session_is_refused():
    text = """
class Log(tf.estimator.SessionRunHook):
    def after_run(self, run_context, run_values):
        print(run_values.results)
"""
    (reason,) = reasons(HEAD + text)
    assert "HookContext" in reason


def test_canned_estimators_columns_and_tpus_are_refused():
    found = reasons(HEAD + "c = tf.feature_column.numeric_column('x')\ne = tf.estimator.LinearRegressor([c])\n")
    assert [each.split(": ")[0] for each in found] == [
        "3 tf.feature_column.numeric_column",
        "4 tf.estimator.LinearRegressor",
    ]


def test_modes_of_a_model_function_and_of_tensorflow():
    text = "tf1.disable_eager_execution()\nm = tf.estimator.ModeKeys.TRAIN\n"
    assert converted(HEAD + text) == "m = rx.estimator.ModeKeys.TRAIN\n"
