"""What is learned: when gradients become ready, in steps, as a profile and its file."""
