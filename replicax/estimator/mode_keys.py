"""`ModeKeys`: for what a model function is called."""


class ModeKeys:
    """The values of a model function's argument `mode`: strings, which `==` compares.

    Attributes:
        TRAIN: Training: the function returns a loss and says how to update the variables.
        EVAL: Evaluation: it returns a loss and metrics.
        PREDICT: Prediction and export: it returns predictions; there are no labels.

    Example:
        >>> rx.estimator.ModeKeys.TRAIN
        'train'
    """

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
