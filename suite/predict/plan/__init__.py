"""Planning a training: which layout, on how many accelerators, for how long."""
