"""Bars of character cells."""

from __future__ import annotations

BAR_CELLS = 20
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, *, cells: int = BAR_CELLS) -> str:
    """A bar over `share` (0 to 1, longer ones are cut) of `cells` character cells, to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")
