"""The options of `reproduce`: each is written here alone, with its help, and the command line is made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from reference_runs.miniature import DEFAULT_STEPS
from suite.job.options import Averaging, KernelChoice
from suite.paths import RESULTS

OPTIMIZERS: tuple[str, ...] = ("adam", Averaging.ONE_BIT.value)  # adam: Adam or AdamW, as recorded
COMPRESSIONS: tuple[str, ...] = ("none", Averaging.FP16.value, Averaging.BF16.value, Averaging.POWER_SGD.value)

# Options that other commands have too
GEMM_DTYPE = ("--gemm-dtype", "--products")  # the second is the name that it had: read for one release
Device = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
Compiled = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="Use torch.compile (default: on CUDA only).")
]
CorpusPath = Annotated[
    Path | None,
    typer.Option(readable=False, help="Text file or directory to train on (default: Python's standard library)."),
]
MayCalibrate = Annotated[
    bool,
    typer.Option(
        "--calibrate/--no-calibrate",
        envvar="SUITE_CALIBRATE",
        help="Measure the machine first where no valid profile of it is stored.",
    ),
]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A user's request to `reproduce`, in the order of its --help; None where an option is absent.

    `plan` and `slice_plan` check it. How often to launch, and what to print, draw and calibrate, concerns the command.
    """

    name: Annotated[
        str | None,
        typer.Argument(
            help="A miniature such as bloom-mini, a run file, a config.json, FILE.py:FUNCTION, or on GPUs a run."
        ),
    ] = None
    mini: Annotated[
        bool, typer.Option("--mini", help="Run the miniature of the run, run file or config.json, by stated rules.")
    ] = False
    slice: Annotated[
        bool,
        typer.Option("--slice", help="Run what one accelerator of the run or run file computes; same as NAME-slice."),
    ] = False
    stage: Annotated[
        str | None,
        typer.Option(
            help="Stage of a slice: first, middle, last, or a number from 0 (default: middle, or what there is)."
        ),
    ] = None
    layers: Annotated[int | None, typer.Option(help="Number of layers of a slice (default: all of the stage).")] = None
    sequence: Annotated[int | None, typer.Option(help="Tokens in a sample of a slice (default: as recorded).")] = None
    micro_batch: Annotated[
        int | None, typer.Option(help="Samples in a micro-batch of a slice (default: as recorded).")
    ] = None
    minutes: Annotated[
        float | None, typer.Option(help="Minutes after which no repetition of a slice begins; at least one is timed.")
    ] = None
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Number of processes (default: miniature 2 on the CPU or all GPUs, run its layout's, slice 1)."
        ),
    ] = None
    layout: Annotated[str | None, typer.Option(help="Layout, such as dp2,zero1,recompute-full,bucket4.")] = None
    device: Device = "auto"
    compiled: Compiled = None
    kernels: Annotated[
        str,
        typer.Option(
            help="Kernels of norms, activations, rotation, softmax and loss: torch or triton; see docs/kernels.md."
        ),
    ] = KernelChoice.TORCH.value
    optimizations: Annotated[
        str | None,
        typer.Option(help="Faster ways to execute a step on a GPU: default, none, or names; see docs/mfu_design.md."),
    ] = None
    products: Annotated[
        str | None,
        typer.Option(
            *GEMM_DTYPE,
            help="GEMM format of linear layers: none or fp8-current; see docs/predictions.md (default: the run's own).",
        ),
    ] = None
    optimizer: Annotated[
        str, typer.Option(help="adam (Adam or AdamW, as recorded) or one-bit-adam; see docs/one_bit_adam.md.")
    ] = OPTIMIZERS[0]
    gradient_compression: Annotated[
        str, typer.Option(help="none, fp16, bf16 (CUDA) or powersgd: PyTorch's hooks of DistributedDataParallel.")
    ] = COMPRESSIONS[0]
    exact_steps: Annotated[
        int | None,
        typer.Option(
            help="Number of exact-averaging steps before one-bit-adam or powersgd begins (default: 15 % of all)."
        ),
    ] = None
    renewal: Annotated[
        bool,
        typer.Option(
            "--renew-second-moment",
            help="Take exact steps again at every doubling of the steps (with --optimizer one-bit-adam).",
        ),
    ] = False
    synchronisation: Annotated[
        str | None,
        typer.Option(help="How dpN workers at a parameter store wait: bsp, ssp:S or asp; see docs/synchronisation.md."),
    ] = None
    slow_rank: Annotated[
        str | None,
        typer.Option(
            help="Slow a rank down: RANK:FACTOR:EVERY, such as 1:2:10 for one step of 10 (with --synchronisation)."
        ),
    ] = None
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Number of steps from one checkpoint to the next, below RESULTS/checkpoints.")
    ] = None
    resume: Annotated[
        str | None, typer.Option(help="Directory whose newest checkpoint training continues from (latest: of any).")
    ] = None
    max_restarts: Annotated[
        int, typer.Option(help="Number of restarts from the last checkpoint after a rank has ended.")
    ] = 0
    global_batch: Annotated[int | None, typer.Option(help="Number of samples in a step (default: the run's own).")] = (
        None
    )
    share_devices: Annotated[
        bool,
        typer.Option(
            "--share-devices", help="Allow more ranks than GPUs: for exact figures and memory, not for times."
        ),
    ] = False
    steps: Annotated[
        int, typer.Option(help="Number of training steps; the first 5, and of 8 or more the last 2, are not timed.")
    ] = DEFAULT_STEPS
    launches: Annotated[
        int, typer.Option(help="Number of launches, each with its own record; from 2 on times are summarised.")
    ] = 1
    seed: Annotated[int, typer.Option(help="Seed of weights, sample order and dropout.")] = 1
    corpus: CorpusPath = None
    trace: Annotated[
        Path | None,
        typer.Option(
            readable=False, help="Trace of the profiled steps of rank 0: FILE.json; of other ranks: FILE.rankN.json."
        ),
    ] = None
    schedule: Annotated[
        Path | None,
        typer.Option(readable=False, help="Picture of a pipeline's passes, predicted and below it measured: FILE.png."),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False
    engine: Annotated[
        str | None, typer.Option(help="slurm: start ranks on the nodes of a scheduler; see docs/slurm.md.")
    ] = None
    nodes: Annotated[int | None, typer.Option(help="Number of nodes (with --engine; default 1).")] = None
    ranks_per_node: Annotated[int | None, typer.Option(help="Processes on each node (with --engine; default 1).")] = (
        None
    )
    partition: Annotated[str | None, typer.Option(help="Partition that nodes are taken from (with --engine).")] = None
    node_list: Annotated[
        str | None, typer.Option("--on", help="Nodes by name (with --engine), as Slurm writes them: n[1-4].")
    ] = None
    results: Annotated[
        Path, typer.Option(help="Where records and profiles are stored; with --engine all nodes must see it.")
    ] = RESULTS
    may_calibrate: MayCalibrate = True
    every_figure: Annotated[
        bool, typer.Option("--all", help="Print every figure with its reason, of each of several launches too.")
    ] = False
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object a launch, then one of several launches; progress goes to stderr."
        ),
    ] = False

    @property
    def run(self) -> str:
        """The name of what is reproduced; empty where none is given."""
        return self.name or ""

    def given(self, *names: str) -> list[str]:
        """Options among the fields of these names, as they are written, that have another value than the default."""
        return [
            f"--{_RENAMED.get(field.name, field.name).replace('_', '-')}"
            for field in map(_FIELDS.__getitem__, names)
            if getattr(self, field.name) != field.default
        ]


_FIELDS = {field.name: field for field in msgspec.structs.fields(Request)}
_RENAMED = {"renewal": "renew_second_moment", "products": "gemm_dtype"}

# The headings of --help, each with its fields; the others stand first
GROUPS: dict[str, tuple[str, ...]] = {
    "Training": (
        *("steps", "seed", "corpus", "global_batch", "optimizer", "kernels", "optimizations", "products", "compiled"),
    ),
    "Ranks and layout": ("ranks", "layout", "device", "share_devices"),
    "Slice of a run": ("slice", "stage", "layers", "sequence", "micro_batch", "minutes"),
    "Gradients and synchronisation": (
        *("gradient_compression", "exact_steps", "renewal", "synchronisation", "slow_rank"),
    ),
    "Checkpoints": ("checkpoint_every", "resume", "max_restarts"),
    "Nodes of a scheduler": ("engine", "nodes", "ranks_per_node", "partition", "node_list"),
    "Measurement and output": (
        *("launches", "may_calibrate", "results", "trace", "schedule", "force", "every_figure", "json"),
    ),
}
