"""TensorFlow's keywords of checkpoints do here what they do there."""
