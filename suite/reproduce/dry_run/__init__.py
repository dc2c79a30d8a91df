"""Executes every rank of a layout without its memory, one after the other, and compares it with the prediction."""
