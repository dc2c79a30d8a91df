"""The papers' formulas: parameters, flop, memory, traffic, time."""
