"""The input of a trace, which executes any model's step without its memory, and what it answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from suite.job.dry_run_job import Moment
from suite.job.events import CountedCollective
from suite.job.operators import TracedOperator

UNKNOWN_SHAPES = "its shapes depend on numbers that a trace does not know"


class Sharding(StrEnum):
    """How data-parallel ranks share a model's state."""

    REPLICATED = "replicated"  # DistributedDataParallel
    KEPT = "kept"  # FSDP2; gathered weights stay until the backward pass
    RESHARDED = "resharded"  # FSDP2; weights are gathered again for the backward pass


class OptimizerKernel(StrEnum):
    """An optimizer of PyTorch, and how it is computed."""

    ADAMW = "adamw"  # foreach: over lists of tensors, PyTorch's default on a GPU
    ADAMW_FUSED = "adamw-fused"  # one kernel, without temporaries
    ADAMW_8BIT = "adamw-8bit"  # bitsandbytes' AdamW8bit: moments in one byte, with a scale for each block of 256
    MUON = "muon"  # PyTorch's, for the matrices of decoder layers; foreach AdamW for the rest
    SGD = "sgd"  # without momentum: no state
    SGD_MOMENTUM = "sgd-momentum"


class NumberFormat(StrEnum):
    """Formats of weights and of arithmetic."""

    FP32 = "fp32"
    BF16 = "bf16"  # fp32 weights, products in bf16
    BF16_PURE = "bf16-pure"  # bf16 alone


class Compiler(StrEnum):
    """The compiler of the decoder layers, whose rules say which operators are one kernel."""

    NONE = ""  # eager
    TRITON = "triton"  # kernels for GPUs
    CPP = "cpp"  # for CPUs


class Adapters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Low-rank adapters of peft, which alone are trained: LoRA.

    Args:
        rank: columns of the first and rows of the second matrix of each adapter.
        targets: names of the linear layers that get one; empty: all but the head, peft's "all-linear".
        quantised: whether the other weights of linear layers are stored in NF4 with scales that are quantised again, as
            QLoRA has them (bitsandbytes).
    """

    rank: int
    targets: tuple[str, ...] = ()
    quantised: bool = False


class ModelSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a model's module comes from: one of both.

    Args:
        configuration: path of a config.json that transformers reads; code that it names is never loaded.
        module: FILE.py:FUNCTION, whose function returns a module, or a module and the inputs of its forward pass.
        mini: whether the configuration is scaled down first (`suite.execute.trace.miniature`).
        values: JSON that takes the place of the file, with infinity, which msgspec would lose; None: the file is read.
        sha256, software: of the file, and what builds the module, where a launch is recorded.
    """

    configuration: str = ""
    module: str = ""
    mini: bool = False
    values: str | None = None
    sha256: str = ""
    software: str = ""

    @property
    def words(self) -> str:
        """The source as it was given."""
        return self.configuration or self.module


class TraceJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="step"):
    """A step of one rank of so many.

    Args:
        rank: the one that is traced.
        micro_batches: of a rank's step, each of `micro_batch` samples of `sequence` tokens.
        recompute: whether decoder layers keep their input alone, and are computed again in the backward pass.
        recompute_every: of so many layers one is computed again, the last; the others keep everything.
        saves_products: whether a layer that is computed again keeps attention and every other matrix product too, the
            first among them: torchtitan's selective recomputation by operator.
        synchronises_once: whether gradients are reduced after the last micro-batch alone.
        adapters: None: all weights are trained.
        compiler: what compiles each decoder layer, or the model where it has no layers.
        on_cpu: whether the ranks are CPUs: gloo has buffers for its messages, dropout keeps factors in place of
            bytes, attention with dropout keeps its scores, and state-space layers have transformers' own code.
    """

    source: ModelSource
    ranks: int = 1
    rank: int = 0
    sharding: Sharding = Sharding.REPLICATED
    number_format: NumberFormat = NumberFormat.BF16
    optimizer: OptimizerKernel = OptimizerKernel.ADAMW
    micro_batches: int = 1
    micro_batch: int = 1
    sequence: int | None = None
    recompute: bool = False
    recompute_every: int = 1
    saves_products: bool = False
    synchronises_once: bool = False
    adapters: Adapters | None = None
    compiler: Compiler = Compiler.NONE
    on_cpu: bool = False


class GraphBreak(msgspec.Struct, frozen=True, kw_only=True):
    """Where a compiled module falls apart into two graphs, with Python in between.

    Args:
        place: file and line.
    """

    place: str
    reason: str


class TracedParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Elements of a whole model, each tied tensor once.

    Args:
        by_dtype: elements by dtype as the step begins; nf4: four bits.
        trainable: those that have gradients.
        buffers: elements of registered buffers, which no optimizer updates.
    """

    total: int
    trainable: int
    by_dtype: dict[str, int]
    buffers: int


class ScaledKey(msgspec.Struct, frozen=True):
    """A key of a configuration, its value in the miniature, and the rule that made it."""

    key: str
    given: Any
    here: Any
    rule: str


class StepTrace(msgspec.Struct, frozen=True, kw_only=True, tag="traced"):
    """A step of one rank after the first: its operators, messages and memory.

    Args:
        model: the module's class.
        software: what built it, with its version.
        sequence: tokens of a sample.
        layers: modules of which each was a unit of sharding and recomputation.
        layer_class: their class; empty: there is no list of equal modules.
        parameters: of the whole model.
        operators: of the step, equal calls together; collectives apart.
        collectives: calls and payload by group.
        kept_bytes: that the forward pass of a micro-batch leaves for its backward pass, by module, weights left out.
        peak_bytes: the most that its tensors hold at a time; what kernels need inside is not in it.
        peak_modules: bytes at that moment by module, and by category within it; empty: no module.
        fullest: the moment of each phase of the step in which its sum is the largest.
        seconds: that the trace took.
        graph_breaks: within what is compiled.
        stored_parameters: elements that the rank stores.
        weight_bytes: of the storages of its weights and buffers; `gradient_bytes` of the gradients before the update,
            `optimizer_bytes` of the optimizer's state.
        vocabulary: token numbers that the module takes; None: it takes none, or none is known.
        own_inputs: whether the source brings the inputs of its forward pass.
        values: JSON of the configuration as it was scaled down; None: it was not.
        scaled: what became of each key.
    """

    model: str
    software: str
    sequence: int
    layers: int
    layer_class: str
    parameters: TracedParameters
    operators: list[TracedOperator]
    collectives: list[CountedCollective]
    kept_bytes: dict[str, int]
    peak_bytes: int
    peak_modules: dict[str, dict[str, int]]
    fullest: list[Moment]
    seconds: float
    graph_breaks: list[GraphBreak] = []
    stored_parameters: int = 0
    weight_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    vocabulary: int | None = None
    own_inputs: bool = False
    values: str | None = None
    scaled: list[ScaledKey] = []

    @property
    def at_peak(self) -> Moment:
        """The fullest moment of all."""
        return max(self.fullest, key=lambda moment: moment.total)


class NotTraced(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Why there is no trace.

    Args:
        message: what, in one line.
        place: module or line where it happened; empty: unknown.
        is_input: whether the model is at fault, not this program or its memory.
        traceback: for who looks closer.
    """

    message: str
    place: str = ""
    is_input: bool = True
    traceback: str = ""


TraceAnswer = StepTrace | NotTraced
