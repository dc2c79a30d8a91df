"""Facts and measured profile of a machine: data, no torch."""
