"""How a run is laid out over ranks, as data and as the text that the command line takes."""

from __future__ import annotations

import enum
import re
from typing import Annotated

import msgspec

from reference_runs.errors import InputError

Count = Annotated[int, msgspec.Meta(ge=1)]


class Schedule(enum.StrEnum):
    """Order of micro-batches over pipeline stages."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"


class Recomputation(enum.StrEnum):
    """Which activations are computed again in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parallel axes and what goes with them.

    Args:
        accumulation: micro-batches a rank and step; None: global batch / (data_parallel * micro-batch).
        bucket_bytes: gradient bytes that one data-parallel all-reduce waits for.
    """

    data_parallel: Count = 1
    tensor_parallel: Count = 1
    pipeline_stages: Count = 1
    context_parallel: Count = 1
    sequence_parallel: bool = False
    zero_stage: Annotated[int, msgspec.Meta(ge=0, le=3)] = 0
    virtual_stages: Count = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    recomputation: Recomputation = Recomputation.NONE
    accumulation: Count | None = None
    bucket_bytes: Annotated[int, msgspec.Meta(ge=1, extra={"unit": "byte"})] = 25 * 2**20

    @property
    def ranks(self) -> int:
        """Processes of the job: the product of the axes."""
        return self.data_parallel * self.tensor_parallel * self.pipeline_stages * self.context_parallel


_GRAMMAR = (
    "dpN, tpN, ppN, cpN, sp, zero0/1/2/3, interleaveN, gpipe/1f1b, recompute-none/selective/full, "
    "accumulateN, bucketN (MB), separated by commas"
)
_COUNTS = {
    "dp": "data_parallel",
    "tp": "tensor_parallel",
    "pp": "pipeline_stages",
    "cp": "context_parallel",
    "interleave": "virtual_stages",
    "accumulate": "accumulation",
}


def parse_layout(text: str, *, base: Layout) -> Layout:
    """The layout that `text` asks for; axes that it omits are 1, the rest is taken from `base`.

    Raises:
        InputError: a word outside the grammar, a word given twice, or a count of 0.
    """
    changes: dict[str, object] = dict.fromkeys(
        ("data_parallel", "tensor_parallel", "pipeline_stages", "context_parallel"), 1
    )
    changes |= {"sequence_parallel": False, "virtual_stages": 1, "accumulation": None}
    seen: set[str] = set()
    for word in text.split(","):
        match = re.fullmatch(r"(dp|tp|pp|cp|interleave|accumulate|bucket|zero)(\d+)", word.strip())
        if match:
            name, number = match.group(1), int(match.group(2))
            if name == "zero" and number <= 3:
                key, value = "zero_stage", number
            elif name == "bucket" and number >= 1:
                key, value = "bucket_bytes", number * 10**6
            elif name in _COUNTS and number >= 1:
                key, value = _COUNTS[name], number
            else:
                raise InputError("number out of range", got=repr(word), allowed=_GRAMMAR, where="--layout")
            choice: object = value
        elif word.strip() == "sp":
            key, choice = "sequence_parallel", True
        elif word.strip() in tuple(Schedule):
            key, choice = "schedule", Schedule(word.strip())
        elif word.strip().removeprefix("recompute-") in tuple(Recomputation) and "-" in word:
            key, choice = "recomputation", Recomputation(word.strip().removeprefix("recompute-"))
        else:
            raise InputError("not a layout", got=repr(word), allowed=_GRAMMAR, where="--layout")
        if key in seen:
            raise InputError("given twice", got=repr(word), where="--layout")
        seen.add(key)
        changes[key] = choice
    return msgspec.structs.replace(base, **changes)


def layout_text(layout: Layout) -> str:
    """The text of `layout` in the command line's grammar: the axes always, the rest where it is not the default."""
    default = Layout()
    words = [f"dp{layout.data_parallel}", f"tp{layout.tensor_parallel}", f"pp{layout.pipeline_stages}"]
    if layout.context_parallel > 1:
        words.append(f"cp{layout.context_parallel}")
    if layout.sequence_parallel:
        words.append("sp")
    words.append(f"zero{layout.zero_stage}")
    if layout.virtual_stages > 1:
        words.append(f"interleave{layout.virtual_stages}")
    if layout.pipeline_stages > 1:
        words.append(layout.schedule.value)
    words.append(f"recompute-{layout.recomputation.value}")
    if layout.accumulation is not None:
        words.append(f"accumulate{layout.accumulation}")
    if layout.bucket_bytes != default.bucket_bytes and layout.bucket_bytes % 10**6 == 0:
        words.append(f"bucket{layout.bucket_bytes // 10**6}")
    return ",".join(words)
