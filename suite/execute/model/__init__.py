"""Single-device decoder: knows no ranks.

Shape letters: B sequences, T positions, S positions attended to, D hidden, H heads, K head size, F feed-forward
width, V vocabulary rows.
"""
