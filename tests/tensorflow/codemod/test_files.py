"""`tf.io.gfile`, and what goes without a counterpart."""

from tests.tensorflow.codemod.converted import conversion, converted, reasons


def test_local_files():
    text = """
        import tensorflow as tf
        if tf.io.gfile.exists(path):
            tf.io.gfile.rmtree(path)
        tf.compat.v1.io.gfile.makedirs(path)
        """
    assert converted(text) == "if os.path.exists(path):\n    shutil.rmtree(path)\nos.makedirs(path, exist_ok=True)\n"


def test_a_remote_file_is_refused():
    assert reasons("import tensorflow as tf\ntf.io.gfile.rmtree('gs://bucket/x')\n") == [
        "2 tf.io.gfile.rmtree: Python's functions know local paths only: use `etils.epath` for a remote one."
    ]


def test_a_statement_that_has_no_counterpart_goes_and_is_noted():
    text = """
        import tensorflow as tf
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
        # The cluster.
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
        """
    assert converted(text) == (
        'resolver = rx.cluster_resolver.TPUClusterResolver(tpu="")\nstrategy = rx.TPUStrategy(resolver)\n'
    )
    assert [each.severity for each in conversion(text).findings] == ["note", "note"]


def test_its_result_is_refused():
    (reason,) = reasons("import tensorflow as tf\ntopology = tf.tpu.experimental.initialize_tpu_system(r)\n")
    assert reason.endswith("Its result has no counterpart.")
