"""Numbers of a recorded run, each with its unit and its range; and the divisors of a number."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

MOST = 10**9  # of a size or a count: none has as much, its sums stay exact, and loops over its divisors are short
MOST_IN_ALL = 10**18  # of a whole training, or a whole model
MOST_LAYERS = 10_000  # each is counted, and may be a stage
SMALLEST, LARGEST = 1e-30, 1e30  # of any number but 0, see `recorded_file`: products of several are finite, and above 0

Count = Annotated[int, msgspec.Meta(ge=1, le=MOST, extra={"unit": "1"})]
Layers = Annotated[int, msgspec.Meta(ge=1, le=MOST_LAYERS, extra={"unit": "1"})]
NotNegativeCount = Annotated[int, msgspec.Meta(ge=0, le=MOST, extra={"unit": "1"})]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=MOST, extra={"unit": "token"})]
Samples = Annotated[int, msgspec.Meta(ge=1, le=MOST, extra={"unit": "sample"})]
ParametersInAll = Annotated[int, msgspec.Meta(ge=1, le=MOST_IN_ALL, extra={"unit": "1"})]
TokensInAll = Annotated[int, msgspec.Meta(ge=1, le=MOST_IN_ALL, extra={"unit": "token"})]
SamplesInAll = Annotated[int, msgspec.Meta(ge=1, le=MOST_IN_ALL, extra={"unit": "sample"})]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1, extra={"unit": "1"})]
Positive = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "1"})]
Ratio = Annotated[float, msgspec.Meta(ge=1, le=1e6, extra={"unit": "1"})]  # of a part over the mean of all
Epsilon = Annotated[float, msgspec.Meta(gt=0, le=1, extra={"unit": "1"})]
Deviation = Annotated[float, msgspec.Meta(ge=1e-9, le=1e3, extra={"unit": "1"})]  # of weights: its 6th power counts
NotNegative = Annotated[float, msgspec.Meta(ge=0, extra={"unit": "1"})]
Seconds = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "s"})]
Bytes = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "byte"})]
Flop = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "flop"})]
SamplesPerSecond = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "sample/s"})]
TokensPerSecond = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "token/s"})]
BytesPerSecond = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "byte/s"})]
FlopPerSecond = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "flop/s"})]
AcceleratorSeconds = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "accelerator s"})]


def divisors(number: int) -> list[int]:
    """The divisors of a number, in rising order; as many steps as its square root."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
