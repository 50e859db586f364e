"""All that people bring from TensorFlow: its names, scripts (`codemod`, proved by `proof`) and checkpoints."""
