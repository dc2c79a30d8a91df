"""From text to batches of tokens."""
