"""Names, calls and methods are rewritten by the tables."""

from tests.tensorflow.codemod.converted import conversion, converted, reasons


def test_a_strategy_and_its_methods():
    assert (
        converted(
            """
            import tensorflow as tf

            strategy = tf.distribute.MirroredStrategy(devices=["/gpu:0", "/gpu:1"])
            batches = strategy.experimental_distribute_dataset(data)
            each = strategy.experimental_run_v2(step, args=(x,))
            total = strategy.reduce(tf.distribute.ReduceOp.SUM, each, axis=None)
            """
        )
        == """strategy = rx.MirroredStrategy(devices=["/gpu:0", "/gpu:1"])
batches = strategy.distribute_dataset(data)
each = strategy.run(step, args=(x,))
total = strategy.reduce(rx.ReduceOp.SUM, each, axis=None)
"""
    )


def test_an_imported_module_keeps_its_name():
    text = """
        from tensorflow.experimental import dtensor
        from tensorflow.keras import layers
        mesh = dtensor.create_mesh([("x", 8)])
        dense = layers.Dense(8)
        """
    after = conversion(text).after
    assert "from replicax import dtensor\n" in after
    assert "from keras import layers\n" in after
    assert after.endswith('mesh = dtensor.create_mesh([("x", 8)])\ndense = layers.Dense(8)\n')


def test_what_is_unknown_stays_below_a_comment_and_is_listed():
    found = conversion("import tensorflow as tf\n\nx = tf.something_new(1)\n")
    assert found.after == (
        "import tensorflow as tf\n\n# replicax: tf.something_new: replicax does not know what becomes of it: "
        "look in keras.ops and jax.numpy for its counterpart.\n"
        "x = tf.something_new(1)\n"
    )
    assert [(each.line, each.name) for each in found.edits] == [(3, "tf.something_new")]


def test_what_a_conversion_has_written_is_no_object_of_tensorflows_the_second_time():
    text = """
        import tensorflow as tf
        x = tf.distribute.InputOptions.experimental_per_replica_buffer_size([1], 2)
        y = tf.something_new(1)
        """
    (reason,) = reasons(text)
    assert "something_new" in reason
    assert "x = rx.InputOptions.prefetch([1], 2)\n" in conversion(text).after


def test_a_refused_keyword_says_why():
    (reason,) = reasons(
        "import tensorflow as tf\ns = tf.distribute.TPUStrategy(r, experimental_spmd_xla_partitioning=True)\n"
    )
    assert reason.startswith("2 tf.distribute.TPUStrategy: `experimental_spmd_xla_partitioning`: A replica is one")


def test_a_keyword_without_effect_is_dropped_and_another_one_gets_its_new_name():
    assert (
        converted(
            """
            import tensorflow as tf
            s = tf.distribute.TPUStrategy(r, experimental_spmd_xla_partitioning=False)
            x = s.reduce(reduce_op="SUM", value=x, axis=None)
            """
        )
        == 's = rx.TPUStrategy(r)\nx = s.reduce(op="SUM", value=x, axis=None)\n'
    )


def test_a_script_without_tensorflow_stays():
    text = "import   keras\nkeras.layers.Dense( 3 )\n"
    assert conversion(text).after == text


def test_a_choice_whose_branches_become_equal_is_its_value():
    assert (
        converted(
            """
            import tensorflow as tf
            none = tf.keras.losses.Reduction.NONE if hasattr(tf.keras.losses, "Reduction") else "none"
            one = tf.keras.losses.Reduction.NONE if found() else "none"
            two = 1 if flag else 1
            """
        ).split("\n\n")[-1]
        == 'none = "none"\none = "none" if found() else "none"\ntwo = 1 if flag else 1\n'
    )


def test_gradients_are_clipped_as_tensorflow_does():
    text = """
        import tensorflow as tf
        gradients, norm = tf.clip_by_global_norm(gradients, 5.0, name="clip")
        one = tf.clip_by_norm(one, 1.0, [0])
        norm = tf.linalg.global_norm(gradients)
        """
    assert reasons(text) == []
    assert converted(text).endswith(
        "gradients, norm = rx.keras.clip_by_global_norm(gradients, 5.0)\n"
        "one = rx.keras.clip_by_norm(one, 1.0, [0])\nnorm = rx.keras.global_norm(gradients)\n"
    )
