"""What starts something on other nodes: one module an engine."""
