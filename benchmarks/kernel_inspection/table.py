"""The table of launches: what was compiled, what it allows on paper, and why it is not more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import triton

from benchmarks.kernel_inspection.launches import KernelArgument, KernelLaunch
from benchmarks.kernel_inspection.machine_code import MachineCode
from benchmarks.kernel_inspection.prediction import Forecast

BEGIN, END = "<!-- written by benchmarks.kernel_inspection -->", "<!-- end -->"
LEAST_FORWARD, LEAST_BACKWARD = 0.9, 0.8
ACTIVATIONS = ("gelu", "gelu_tanh", "fast_gelu", "relu", "relu_squared", "silu")
WORDS = {
    "RMS": "RMS",
    "ADDS": "of a sum",
    "KEEPS": "sum kept",
    "SCALES": "scaled",
    "HAS_DS": "and its gradient",
    "TWO": "two",
    "CAUSAL": "causal",
    "HAS_PREFIX": "prefix",
    "HAS_SLOPES": "ALiBi",
    "HAS_SEEN": "packed samples",
    "HAS_COPY": "16-bit copy",
    "INVERSE": "backward",
}
# by function; what a launch must be like; why
REASONS: tuple[tuple[str, Callable[[KernelLaunch, MachineCode], bool], str], ...] = (
    (
        "row_norm._backward_kernel",
        lambda launch, _: launch.named["PARTS"] > 1,
        "The sums of the weights' gradients do not fit into one program's registers: two or three programs share a "
        "row, and each computes its means.",
    ),
    (
        "cross_entropy._kernel",
        lambda launch, _: launch.named["VECTOR"] == 1,
        "Rows of an odd length are not aligned: every value is loaded alone, and none ahead. Pad the vocabulary.",
    ),
    (
        "cross_entropy._kernel",
        lambda launch, _: launch.named["V"] >= 65_536,
        "A row is read twice, and the rows in work do not stay in the cache: 2/3 of a copy is the most.",
    ),
    (
        "cross_entropy._kernel",
        lambda launch, _: launch.named["V"] <= 4096,
        "A miniature's vocabulary fills 3/4 of one block; the whole launch takes 10 us, in the cache.",
    ),
    (
        "cross_entropy._kernel",
        lambda launch, _: launch.programs < 1024,
        "The last chunk of the tokens: too few rows to fill 132 processors.",
    ),
    (
        "sign_pack._unpack_kernel",
        lambda *_: True,
        "A load is a byte, and waits for the rank before. The links between ranks take a hundred times longer.",
    ),
)


class Inspected(NamedTuple):
    """A launch with its machine code and what is predicted of it."""

    launch: KernelLaunch
    code: MachineCode
    forecast: Forecast

    @property
    def backward(self) -> bool:
        """Whether it is of a backward pass."""
        return "_backward" in self.launch.name or bool(self.launch.named.get("INVERSE"))

    @property
    def falls_short(self) -> bool:
        """Whether less is predicted than is asked for of its pass."""
        return self.forecast.share < (LEAST_BACKWARD if self.backward else LEAST_FORWARD) - 0.005  # as it is printed

    @property
    def columns(self) -> int:
        """Of its first tensor."""
        shape = next(iter(self.launch.tensors.values())).shape
        return shape[-1] if shape else 1


def label(launch: KernelLaunch) -> str:
    """Kernel, pass and variant in words."""
    module, _, function = launch.name.partition(".")
    named = launch.named
    words = [word for name, word in WORDS.items() if named.get(name) is True]
    if "ACTIVATION" in named:
        words.append(ACTIVATIONS[named["ACTIVATION"]])
    if function == "_backward_kernel":
        words.insert(0, "backward")
    elif function not in ("_kernel", "_forward_kernel"):
        words.insert(0, function.strip("_").removesuffix("_kernel"))
    return " ".join([f"`{module}`", ", ".join(words)]).strip()


def size(launch: KernelLaunch) -> str:
    """Shape of the first tensor, as rows x columns, or all of it where strides make it matter."""
    first = next(iter(launch.tensors.values()))
    if len(first.shape) < 2:
        return f"{first.elements:,}"
    return f"{first.elements // first.shape[-1]:,} x {first.shape[-1]:,}"


def reason(one: Inspected) -> str | None:
    """Why it falls short; None where nobody has found out."""
    for name, holds, why in REASONS:
        if one.launch.name == name and holds(one.launch, one.code):
            return why
    return None


def merged(inspected: Iterable[Inspected]) -> list[tuple[Inspected, list[str]]]:
    """One of all launches that run the same variant over as many columns of a dtype, the worst, and their runs."""
    alike: dict[tuple[object, ...], list[Inspected]] = {}
    for one in inspected:
        first = next(iter(one.launch.tensors.values()))
        alike.setdefault((label(one.launch), one.columns, first.dtype), []).append(one)
    worst = [(min(same, key=lambda one: one.forecast.share), same) for same in alike.values()]
    return [(one, list(dict.fromkeys(each.launch.run for each in same))) for one, same in worst]


def table(inspected: Iterable[Inspected]) -> str:
    """The table in Markdown, and below it the reasons for what falls short."""
    head = [
        "kernel",
        "runs",
        "size",
        "dtype",
        "registers",
        "spilled",
        "shared KiB",
        "programs x warps",
        "load",
        "store",
    ]
    head += ["on the way", "rounds", "share", "limit"]
    lines = [_line(head), _line(["---"] * 4 + ["---:"] * 9 + ["---"])]
    notes: list[str] = []
    for one, runs in sorted(merged(inspected), key=lambda pair: (label(pair[0].launch), pair[0].columns)):
        mark = ""
        if one.falls_short:
            why = reason(one) or "No reason is known."
            if why not in notes:
                notes.append(why)
            mark = f" ({notes.index(why) + 1})"
        lines.append(_line([*_cells(one, runs), f"{one.forecast.share:.0%}{mark}", one.forecast.binding]))
    compiler = f"Compiled for sm_90 by Triton {triton.__version__}; on paper, not measured."
    numbered = [f"{number}. {why}" for number, why in enumerate(notes, start=1)]
    return "\n".join([compiler, "", *lines, "", *numbered]).rstrip() + "\n"


def _cells(one: Inspected, runs: Sequence[str]) -> list[str]:
    first: KernelArgument = next(iter(one.launch.tensors.values()))
    loaded, stored = (
        "/".join(map(str, widths)) or "-" for widths in (one.forecast.load_bytes, one.forecast.store_bytes)
    )
    return [
        label(one.launch),
        ", ".join(run.removesuffix("-mini") for run in runs),
        size(one.launch),
        str(first.dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp"),
        str(one.code.registers),
        str(one.code.spilled_bytes),
        f"{one.code.shared_bytes / 1024:.0f}",
        f"{one.forecast.resident} x {one.launch.warps}",
        loaded,
        stored,
        f"{one.forecast.in_flight:.1f}",
        f"{one.forecast.rounds:.1f}",
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def written_into(page: str, text: str) -> str:
    """The page with the text between its marks.

    Raises:
        ValueError: the page has not both marks, in their order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"allowed a page with the lines {BEGIN} and {END}, got one without")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"
