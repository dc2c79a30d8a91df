"""What each kernel moves, and how often its loops run, from the arguments of a launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from benchmarks.kernel_inspection.hopper import L2_BYTES, PROCESSORS
from benchmarks.kernel_inspection.launches import KernelLaunch

LoopPasses = tuple[float, ...]
# of the cache, that rows in work may fill: the rest has what is written, and the halves of the cache copy each other
L2_SHARE = 0.6


class Walk(NamedTuple):
    """Bytes and loops of one launch.

    Args:
        least_bytes: inputs read once, outputs written once; without partial sums.
        read_bytes, written_bytes: what goes over the memory's bus.
        passes, streams, pass_bytes: of the loops of one program, as `machine_code.weights` takes them.
    """

    least_bytes: float
    read_bytes: float
    written_bytes: float
    passes: LoopPasses = ()
    streams: int = 1
    pass_bytes: float = 0


class _WalkRule(NamedTuple):
    """How one kernel goes through its tensors.

    Args:
        written: names of the outputs; those in `changed` are read and written.
        sums: partial sums, which no formula of least bytes has.
        read_share: of the inputs that is read, by the launch.
        again: reads of tensors in `changed` beyond the first one, by the launch.
    """

    written: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    sums: str = ""
    passes: Callable[[KernelLaunch], LoopPasses] = lambda _: ()
    read_share: Callable[[KernelLaunch], float] = lambda _: 1.0
    again: Callable[[KernelLaunch], float] = lambda _: 0.0
    streams: int = 1
    pass_bytes: Callable[[KernelLaunch], float] = lambda _: 0.0


def _parts(launch: KernelLaunch, length: str, block: str) -> int:
    return -(-int(launch.named[length]) // int(launch.named[block]))


def _over_rows(launch: KernelLaunch) -> LoopPasses:
    """Tiles of a loop over rows that all programs share, whose blocks of columns are programs of their own."""
    columns = "F" if "F" in launch.named else "N"
    return (_parts(launch, "M", "ROWS") * _parts(launch, columns, "BLOCK") / launch.programs,)


def _norm_backward(launch: KernelLaunch) -> LoopPasses:
    parts = launch.named["PARTS"]
    return (_parts(launch, "M", "ROWS") * parts / launch.programs, _parts(launch, "N", "BLOCK"))


def _loss_again(launch: KernelLaunch) -> float:
    """1 where the rows in work do not stay in the cache between their two readings."""
    row = launch.tensors["logits_ptr"].bytes / launch.programs
    at_once = min(launch.programs, PROCESSORS * max(1, 32 // launch.warps))
    return float(row * at_once > L2_SHARE * L2_BYTES)


def _block_bytes(*tensors: str) -> Callable[[KernelLaunch], float]:
    """What a thread loads of one block of these tensors."""

    def formula(launch: KernelLaunch) -> float:
        sizes = sum(launch.tensors[name].dtype.itemsize for name in tensors)
        return float(sizes * launch.named["BLOCK"]) / (32 * launch.warps)

    return formula


def _attended(launch: KernelLaunch) -> float:
    """The share of the scores that a causal mask leaves to be read, to a multiple of 16 columns."""
    if not launch.named["CAUSAL"]:
        return 1.0
    length = int(launch.named["S"])
    return min(1.0, (length + 16) / (2 * length))


RULES: Mapping[str, _WalkRule] = {
    "row_norm._forward_kernel": _WalkRule(
        written=("y_ptr", "y2_ptr", "s_ptr", "mean_ptr", "rstd_ptr"),
        passes=lambda one: (_parts(one, "M", "ROWS") / one.programs,),
    ),
    "row_norm._backward_kernel": _WalkRule(written=("dx_ptr", "df_ptr"), sums="sums_ptr", passes=_norm_backward),
    "bias_activation._forward_kernel": _WalkRule(written=("y_ptr",)),
    "bias_activation._backward_kernel": _WalkRule(written=("dx_ptr",), sums="sums_ptr", passes=_over_rows),
    "gated_activation._forward_kernel": _WalkRule(written=("y_ptr",)),
    "gated_activation._backward_kernel": _WalkRule(written=("dx_ptr",), sums="sums_ptr", passes=_over_rows),
    "rotary._kernel": _WalkRule(written=("q_out_ptr", "k_out_ptr"), passes=lambda one: (one.named["HEADS"],)),
    "masked_softmax._forward_kernel": _WalkRule(
        written=("weights_ptr",), passes=lambda one: (one.named["LAPS"],), read_share=_attended
    ),
    "masked_softmax._backward_kernel": _WalkRule(written=("gradient_ptr",), read_share=_attended),
    "cross_entropy._kernel": _WalkRule(
        written=("losses_ptr",),
        changed=("logits_ptr",),
        passes=lambda one: (one.named["vocabulary"] // one.named["BLOCK"],),
        again=_loss_again,
        streams=2,
    ),
    "cross_entropy._multiply_kernel": _WalkRule(
        changed=("x_ptr",),
        passes=lambda one: (_parts(one, "elements", "BLOCK") / one.programs,),
        pass_bytes=_block_bytes("x_ptr"),
    ),
    "adamw._kernel": _WalkRule(written=("copy_ptr",), changed=("weight_ptr", "first_ptr", "second_ptr")),
    "gradient_norm._squares_kernel": _WalkRule(
        written=("sums_ptr",),
        passes=lambda one: (one.named["chunks"] / one.programs,),
        pass_bytes=_block_bytes("gradient_ptr"),
    ),
    "sign_pack._squares_kernel": _WalkRule(
        written=("sums_ptr",),
        passes=lambda one: (one.named["chunks"] / one.programs,),
        pass_bytes=_block_bytes("value_ptr", "error_ptr"),
    ),
    "sign_pack._pack_kernel": _WalkRule(written=("packed_ptr",), changed=("error_ptr",)),
    "sign_pack._unpack_kernel": _WalkRule(written=("mean_ptr",), passes=lambda one: (one.named["ranks"],)),
}
UNRULED = {"gradient_norm.root_kernel"}  # one program, a few kB


def walk(launch: KernelLaunch) -> Walk:
    """Bytes and loops of a launch of a kernel that has a rule."""
    rule = RULES[launch.name]
    sizes = {name: tensor.bytes for name, tensor in launch.tensors.items()}
    written = sum(sizes.get(name, 0) for name in (*rule.written, *rule.changed))
    read = sum(size for name, size in sizes.items() if name not in (*rule.written, rule.sums)) * rule.read_share(launch)
    again = rule.again(launch) * sum(sizes.get(name, 0) for name in rule.changed)
    sums = sizes.get(rule.sums, 0)
    loops = (rule.passes(launch), rule.streams, rule.pass_bytes(launch))
    return Walk(read + written, read + again, written + sums, *loops)
