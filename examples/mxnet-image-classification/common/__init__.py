"""Code that the training scripts of this folder share: options, networks, data, checkpoints, and the parts of a training run."""
