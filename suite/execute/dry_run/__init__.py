"""One rank of a layout of any size, executed in one process on tensors without memory."""
