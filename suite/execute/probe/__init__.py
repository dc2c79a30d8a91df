"""Quick tests of this machine for `accept`: wrong bits, determinism, sustained load, free memory."""
