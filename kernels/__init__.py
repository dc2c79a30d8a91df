"""Leaf: torch and triton only; each file holds one operation with its plain reference."""
