"""Tables and progress in a terminal."""
