"""What one training step asks of a GPU, counted on simulated devices, and its predicted time."""
