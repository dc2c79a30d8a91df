"""A planned training as the launch script or configuration of other software; one module a format."""
