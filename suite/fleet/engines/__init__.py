"""Engines, which start commands on other nodes: one module each."""
