"""TensorFlow's names: `tf.estimator`."""

from __future__ import annotations

from replicax.tensorflow.names.rows import Rows, absent, absent_members, differs, refused, renamed, same, to, unused

_E = "tf.estimator"
_CONTRIB = "`tf.contrib` ended with TensorFlow 1. "
_SESSION = refused("There is no session. XLA takes options from `XLA_FLAGS`. Leave it out.", None)
_DEVICES = refused("The strategy places variables: `train_distribute=...`. Leave it out.", None)
_PROTOCOL = refused("The processes speak gRPC. Leave it out.", None, "grpc")
_TEXT = refused("An export is StableHLO with the variables beside it, not a SavedModel. Leave it out.", None, False)
_MASTER = "It belongs to TensorFlow 1's sessions. `config.cluster_spec` has the addresses."
_CONFIG = {
    "tf_random_seed": to("seed"),
    "session_config": _SESSION,
    "device_fn": _DEVICES,
    "protocol": _PROTOCOL,
    "experimental_max_worker_delay_secs": refused(
        "Workers start together: they train in step, or a coordinator schedules their steps. Leave it out.", None
    ),
    "session_creation_timeout_secs": refused(
        "There is no session. The strategy says how long to wait for others: "
        "`rx.MultiWorkerMirroredStrategy(start_timeout=...)`.",
        None,
        7200,
    ),
    "checkpoint_save_graph_def": unused("There is no graph beside a checkpoint."),
}
_EXPORTER = {"serving_input_receiver_fn": to("serving_input"), "as_text": _TEXT}
_CANNED = (
    "BaselineClassifier BaselineEstimator BaselineRegressor DNNClassifier DNNEstimator DNNRegressor "
    "DNNLinearCombinedClassifier DNNLinearCombinedEstimator DNNLinearCombinedRegressor LinearClassifier "
    "LinearEstimator LinearRegressor BoostedTreesClassifier BoostedTreesEstimator BoostedTreesRegressor Head "
    "BinaryClassHead LogisticRegressionHead MultiClassHead MultiHead MultiLabelHead PoissonRegressionHead "
    "RegressionHead add_metrics"
)
_PARSERS = "classifier_parse_example_spec regressor_parse_example_spec"

ESTIMATOR: Rows = {
    _E: same("estimator", "There is no session: a model function returns a loss of arrays."),
    f"{_E}.RunConfig": differs(
        "estimator.RunConfig",
        "Without `train_distribute` the roles choose the strategy: parameter servers, several workers, or the default.",
        **_CONFIG,
    ).ordered(
        "model_dir tf_random_seed save_summary_steps save_checkpoints_steps save_checkpoints_secs session_config "
        "keep_checkpoint_max keep_checkpoint_every_n_hours log_step_count_steps train_distribute device_fn protocol "
        "eval_distribute experimental_distribute experimental_max_worker_delay_secs session_creation_timeout_secs "
        "checkpoint_save_graph_def"
    ),
    f"{_E}.RunConfig.replace": same("estimator.RunConfig.replace", "", **_CONFIG),
    f"{_E}.RunConfig.tf_random_seed": renamed("estimator.RunConfig.seed"),
    **{
        f"{_E}.RunConfig.{name}": absent(_MASTER)
        for name in ["master", "evaluation_master", "session_config", "service"]
    },
    f"{_E}.Estimator": differs(
        "estimator.Estimator", "A batch of an input function is global: its rows are split over the replicas."
    ),
    f"{_E}.EstimatorSpec": differs(
        "estimator.EstimatorSpec",
        "`train_op` is a function that updates, or `optimizer` an optimizer.",
        scaffold=refused("There is no session. Variables take first values from `warm_start_from`.", None),
    ),
    f"{_E}.ModeKeys": same("estimator.ModeKeys"),
    f"{_E}.WarmStartSettings": same("estimator.WarmStartSettings"),
    "tf.keras.estimator.model_to_estimator": differs(
        "estimator.model_to_estimator",
        "The model is copied, and stays as it is.",
        checkpoint_format=unused("A checkpoint has one format."),
        metric_names_map=refused("Metrics have the names that `compile` gave them. Leave it out.", None),
        export_outputs=refused("An export returns the model's outputs. Leave it out.", None),
    ),
    f"{_E}.LoggingTensorHook": same("estimator.LoggingTensorHook"),
    f"{_E}.train_and_evaluate": differs(
        "estimator.train_and_evaluate",
        "With `throttle_secs=0` an evaluator takes each checkpoint, in order, and one that comes back goes on.",
    ),
    f"{_E}.TrainSpec": same("estimator.TrainSpec"),
    f"{_E}.EvalSpec": same("estimator.EvalSpec"),
    f"{_E}.Exporter": same("estimator.Exporter"),
    f"{_E}.LatestExporter": same("estimator.LatestExporter", "", **_EXPORTER).ordered(
        "name serving_input_receiver_fn assets_extra as_text exports_to_keep"
    ),
    f"{_E}.FinalExporter": same("estimator.FinalExporter", "", **_EXPORTER).ordered(
        "name serving_input_receiver_fn assets_extra as_text"
    ),
    f"{_E}.BestExporter": same(
        "estimator.BestExporter",
        "",
        **_EXPORTER,
        event_file_pattern=unused("The best result stands in a file beside the exports, so a restart keeps it."),
    ).ordered("name serving_input_receiver_fn event_file_pattern compare_fn assets_extra as_text exports_to_keep"),
    **absent_members(_CANNED, _E, "Write a model function, or `rx.estimator.model_to_estimator(keras_model)`."),
    **absent_members(_PARSERS, _E, "Feature columns ended with TensorFlow 1; `keras.layers` has their preprocessing."),
    **absent_members(
        "SessionRunHook SessionRunArgs SessionRunContext SessionRunValues FeedFnHook GlobalStepWaiterHook VocabInfo",
        _E,
        "There is no session. A hook derives from `rx.estimator.Hook`.",
    ),
    f"{_E}.ProfilerHook": absent("Use `jax.profiler.start_trace` and `stop_trace` in a hook's `begin` and `end`."),
    f"{_E}.SecondOrStepTimer": absent("A hook sees `context.step`; `time.monotonic` tells the seconds."),
    "tf.contrib.distribute.DistributeConfig": renamed("estimator.DistributeConfig", _CONTRIB.strip()),
}
