"""A predicted step as files for the tools that people know: Perfetto, PyTorch's memory viewer, ASTRA-sim."""
