"""Seconds from a machine: fitted to published measurements, or from a measured profile."""
