"""Rates that follow from a step's time, and what a whole training takes: steps, time, energy and cost."""

from __future__ import annotations

import math

from suite.predict.analytic.elementwise import ceil_division
from suite.predict.analytic.flop_conventions import six_n_flop

SECONDS_PER_HOUR = 3600
SECONDS_PER_YEAR = 365.25 * 24 * SECONDS_PER_HOUR  # the Julian year
JOULES_PER_KILOWATT_HOUR = 1000 * SECONDS_PER_HOUR
TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022, table 3: 1.5 trillion tokens for 67 billion parameters are 22


def tokens_per_second(*, samples: int, sequence: int, step_seconds: float) -> float:
    """Tokens per second of the whole job: B s / t with B samples of s tokens in a step of t seconds."""
    return samples * sequence / step_seconds


def flop_per_second(*, flop: float, step_seconds: float, accelerators: int) -> float:
    """Flop per second of one accelerator: F / (t n), with F flop in a step of the whole job."""
    return flop / (step_seconds * accelerators)


def utilization(*, flop: float, step_seconds: float, accelerators: int, peak_flop_per_second: float) -> float:
    """Share of the dense peak: F / (t n P), with F flop in a step of t seconds on n accelerators of dense peak P.

    MFU of what the model needs, HFU of what is executed, recomputation included.
    Source: Chowdhery et al. 2022, arXiv 2204.02311, section 4.1 and appendix B.
    """
    return flop / (step_seconds * accelerators * peak_flop_per_second)


def training_steps(*, tokens: int, global_batch: int, sequence: int) -> int:
    """Steps that training on `tokens` tokens takes: ceil(D / (B s)) with B samples of s tokens.

    A ramp-up of the batch takes more steps, which are shorter.
    """
    return ceil_division(tokens, global_batch * sequence)


def training_seconds(*, tokens: int, global_batch: int, sequence: int, step_seconds: float) -> float:
    """Seconds of training on `tokens` tokens without interruption: `training_steps` of `step_seconds` each.

    Differs from what a run took by its checkpoints, evaluations, failures and restarts.
    """
    return training_steps(tokens=tokens, global_batch=global_batch, sequence=sequence) * step_seconds


def accelerator_seconds(*, accelerators: int, seconds: float) -> float:
    """Accelerator-seconds of `accelerators` held for `seconds`; 3600 of them are an accelerator-hour."""
    return accelerators * seconds


def energy_joules(
    *, accelerator_seconds: float, watts: float, power_share: float, power_usage_effectiveness: float
) -> float:
    """Joules that the accelerators of a training draw at the building's meter: n t W u E.

    n t     accelerator-seconds
    W u     printed watts of one accelerator, and the share of them that it draws on average
    E       power usage effectiveness: what the building draws for each joule that its machines draw; 1: machines alone

    Source: Patterson et al. 2021, arXiv 2104.10350, section 2.5. Host, network and storage are not counted.
    """
    return accelerator_seconds * watts * power_share * power_usage_effectiveness


def accelerator_cost(*, accelerator_seconds: float, price_per_accelerator_hour: float) -> float:
    """Cost of accelerator-seconds at a price an accelerator-hour, in the price's currency."""
    return accelerator_seconds / SECONDS_PER_HOUR * price_per_accelerator_hour


def energy_cost(*, energy_joules: float, price_per_kilowatt_hour: float) -> float:
    """Cost of an energy at a price a kilowatt-hour, in the price's currency."""
    return energy_joules / JOULES_PER_KILOWATT_HOUR * price_per_kilowatt_hour


def six_n_seconds(*, parameters: float, tokens: float, flop_per_second: float) -> float:
    """Seconds of 6 N D flop (see `suite.predict.analytic.flop_conventions.six_n_flop`) at a flop rate."""
    return six_n_flop(parameters=parameters, tokens=tokens) / flop_per_second


def compute_optimal_tokens(parameters: float) -> float:
    """Tokens with which a model of N parameters has the least loss for its training's flop: D = 20 N.

    Source: Hoffmann et al. 2022 (Chinchilla), arXiv 2203.15556, table 3, whose ratios are 20 to 22.
    Differs from what is trained today: a model that answers many questions is made smaller and trained for longer,
    15 trillion tokens for Llama 3.1 8B, 1,868 a parameter.
    """
    return TOKENS_PER_PARAMETER * parameters


def compute_optimal_parameters(flop: float) -> float:
    """Parameters with which a training of C flop ends at the least loss: N = sqrt(C / 120).

    C = 6 N D with D = 20 N (`compute_optimal_tokens`). Hoffmann's first approach gives 67 billion for the 5.76e23 flop
    of Gopher, this one 69.
    """
    return math.sqrt(flop / six_n_flop(parameters=1, tokens=TOKENS_PER_PARAMETER))


def training_years(*, parameters: float, tokens: float, flop_per_second: float) -> float:
    """Julian years of 6 N D flop at a flop rate: 6 N D / r / (365.25 * 86400).

    175e9 parameters, 300e9 tokens at 28e12 flop/s take 356 years; the often quoted 355 start from 3.14e23 flop.
    """
    seconds = six_n_seconds(parameters=parameters, tokens=tokens, flop_per_second=flop_per_second)
    return seconds / SECONDS_PER_YEAR


# Of 1,180 rows with a step time in reference_runs/published the highest is 0.59: MosaicML's 3B on A100
MOST_PLAUSIBLE_MFU = 0.75


def implausible_share(*, flop: float, step_seconds: float, accelerators: int, peak: float) -> str | None:
    """In words, the share of the peak that a step time implies, where no training is known to come near; None: it may.

    Args:
        flop: that no kernel leaves out: with the half of the attention square that a causal mask leaves.
        peak: flop per second of one accelerator.
    """
    share = utilization(flop=flop, step_seconds=step_seconds, accelerators=accelerators, peak_flop_per_second=peak)
    if share <= MOST_PLAUSIBLE_MFU:
        return None
    return (
        f"{share:.0%} of the peak, with that half of attention alone that a causal mask leaves; above "
        f"{MOST_PLAUSIBLE_MFU:.0%} some of step time, batch, sequence and accelerators is not as recorded"
    )
