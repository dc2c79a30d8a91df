"""Numbers of a recorded run, each with its unit and its range."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1, extra={"unit": "1"})]
Layers = Annotated[int, msgspec.Meta(ge=1, le=100_000, extra={"unit": "1"})]  # each is counted: more fill the memory
NotNegativeCount = Annotated[int, msgspec.Meta(ge=0, extra={"unit": "1"})]
Tokens = Annotated[int, msgspec.Meta(ge=1, extra={"unit": "token"})]
Samples = Annotated[int, msgspec.Meta(ge=1, extra={"unit": "sample"})]
Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1, extra={"unit": "1"})]
Positive = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "1"})]
NotNegative = Annotated[float, msgspec.Meta(ge=0, extra={"unit": "1"})]
Seconds = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "s"})]
Bytes = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "byte"})]
BytesPerSecond = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "byte/s"})]
FlopPerSecond = Annotated[float, msgspec.Meta(gt=0, extra={"unit": "flop/s"})]
