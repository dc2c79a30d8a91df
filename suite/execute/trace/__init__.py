"""A training step of any PyTorch model, without its memory: its operators, its messages and its peak."""
