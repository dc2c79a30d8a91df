"""Rates and utilizations that follow from a step's time."""

from __future__ import annotations


def tokens_per_second(*, samples: int, sequence: int, step_seconds: float) -> float:
    """Tokens per second of the whole job: B s / t with B samples of s tokens in a step of t seconds."""
    return samples * sequence / step_seconds


def flop_per_second(*, flop: float, step_seconds: float, accelerators: int) -> float:
    """Flop per second of one accelerator: F / (t n), with F flop in a step of the whole job."""
    return flop / (step_seconds * accelerators)


def mfu(*, model_flop: float, step_seconds: float, accelerators: int, peak_flop_per_second: float) -> float:
    """Model flop utilization: F / (t n P), the share of the dense peak that what the model needs takes.

    With F model flop in a step of t seconds on n accelerators of dense peak P.
    Source: Chowdhery et al. 2022, arXiv 2204.02311, appendix B.
    """
    return model_flop / (step_seconds * accelerators * peak_flop_per_second)


def hfu(*, hardware_flop: float, step_seconds: float, accelerators: int, peak_flop_per_second: float) -> float:
    """Hardware flop utilization: as `mfu`, of the flop that are executed, recomputation included.

    Source: Chowdhery et al. 2022, arXiv 2204.02311, section 4.1.
    """
    return hardware_flop / (step_seconds * accelerators * peak_flop_per_second)
