"""What was published: the recorded training runs, with units and sources. No torch."""
