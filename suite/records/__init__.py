"""Launches on disk: write, read, index, query."""
