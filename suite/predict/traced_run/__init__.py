"""Seconds of a traced step: each operator priced by a machine's rates, and what messages add."""
