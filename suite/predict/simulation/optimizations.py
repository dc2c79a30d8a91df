"""Which optimizations a launch can have, and which it has by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from reference_runs.catalog import accumulation
from reference_runs.layout import Offload, Recomputation
from reference_runs.run import Activation, Norm, Optimizer, Precision, QueryKeyNorm, Residual, Workload
from suite.job.options import KernelChoice, Optimization
from suite.machine.gpu import H100, Gpu, SdpaBackend, sdpa_backend
from suite.machine.packages import PACKAGES
from suite.predict.analytic.cuda_temporaries import FLASH_3_HEAD_DIMS
from suite.predict.analytic.memory import FP32, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.pipeline_schedule import halves_backward

HOPPER = (9, 0)  # its capability


class PlannedLaunch(NamedTuple):
    """The facts of a launch that decide which optimizations it can have.

    Args:
        device: "cpu" or "cuda".
        compiled: whether blocks are.
        kernels: of everything but matrix products.
        gpu: that it runs on.
    """

    workload: Workload
    device: str
    compiled: bool
    kernels: KernelChoice
    gpu: Gpu = H100


class OptimizationRule(NamedTuple):
    """When an optimization can be had.

    Args:
        why_not: of a launch, in words; empty where it can have it.
        is_default: whether launches that can have it do, where nothing else is asked.
        package: a module, of `PACKAGES`, without which there is none; empty: it needs none.
    """

    why_not: Callable[[PlannedLaunch], str]
    is_default: bool = False
    package: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether its package, if it needs one, is installed in this Python."""
        return not self.package or PACKAGES[self.package].is_installed


def only_cuda(launch: PlannedLaunch) -> str:
    """Why a launch that is not on a GPU cannot have it."""
    return "" if launch.device == "cuda" else "no CUDA device"


def flash_attention_3(launch: PlannedLaunch) -> str:
    """Why FlashAttention 3 cannot compute attention: it is Hopper's, and takes neither dropout nor a mask."""
    architecture, recipe, layout = launch.workload
    reasons = (
        (launch.device != "cuda", only_cuda(launch)),
        (launch.gpu.capability != HOPPER, "a GPU that is not of Hopper's architecture"),
        (not layout.fused_attention, "attention that stores its scores"),
        (WEIGHT_ELEMENT_BYTES[recipe.precision] == FP32, "fp32"),
        (architecture.fused_head_dim > FLASH_3_HEAD_DIMS[-1], "heads of more than 256"),
        (recipe.attention_dropout > 0, "dropout in attention"),
        (layout.context_parallel > 1, "a mask, of sequences that ranks share out"),
    )
    return next((words for applies, words in reasons if applies), "")


def sums_with_norms(launch: PlannedLaunch) -> str:
    """Why the sum at the end of a block cannot be computed with the next block's norm.

    Recomputation would keep two tensors of each group, and stages send one.
    """
    architecture, _, layout = launch.workload
    reasons = (
        (launch.device != "cuda", only_cuda(launch)),
        (not launch.compiled and launch.kernels is KernelChoice.TORCH, "neither a compiler nor Triton to fuse them"),
        (architecture.norm not in (Norm.PRE_LAYER_NORM, Norm.PRE_RMS_NORM), "no norm at the start of blocks"),
        (architecture.residual is Residual.PARALLEL, "attention and feed-forward part in parallel"),
        (architecture.top_query_layer, "a top-query layer, which reads the sum"),
        (layout.recomputation is Recomputation.FULL, "full recomputation, which keeps the sum"),
        (layout.pipeline_stages > 1, "a pipeline, whose stages send the sum"),
        (layout.fully_sharded, "fully sharded blocks"),
    )
    return next((words for applies, words in reasons if applies), "")


def one_gradient(launch: PlannedLaunch) -> str:
    """Why attention cannot write the gradient of a fused projection's output.

    Rotated or normalised queries and keys are no views of that output, nor is what is gathered or repeated; heads of
    a group of queries do not lie at equal distances.
    """
    architecture, recipe, layout = launch.workload
    half, head_dim = WEIGHT_ELEMENT_BYTES[recipe.precision] < FP32, architecture.fused_head_dim
    reasons = (
        (launch.device != "cuda", only_cuda(launch)),
        (not layout.fused_attention, "attention that stores its scores"),
        (architecture.rotary_dim is not None, "queries and keys that are rotated"),
        (architecture.query_key_norm is not QueryKeyNorm.NONE, "queries and keys that are normalised"),
        (architecture.kv_heads != architecture.heads, "queries that share keys"),
        (architecture.key_value_rank is not None, "latent attention"),
        (architecture.top_query_layer, "a top-query layer"),
        (recipe.attention_dropout > 0, "dropout in attention"),
        (layout.recomputation is Recomputation.SELECTIVE, "attention that is recomputed"),
        (layout.tensor_parallel * layout.context_parallel > 1, "attention that ranks share out"),
        (
            sdpa_backend(launch.gpu, half=half, head_dim=head_dim) is not SdpaBackend.CUDNN,
            "another kernel of attention than cuDNN's",
        ),
    )
    return next((words for applies, words in reasons if applies), "")


def dependent_launches(launch: PlannedLaunch) -> str:
    """Why compiled kernels cannot be launched before the one that they wait for has ended."""
    reasons = (
        (launch.device != "cuda", only_cuda(launch)),
        (not launch.compiled, "no compiled block"),
        (launch.gpu.capability < HOPPER, "a GPU older than Hopper"),
    )
    return next((words for applies, words in reasons if applies), "")


def captured_passes(launch: PlannedLaunch) -> str:
    """Why the passes of a micro-batch cannot be captured once and launched as graphs for all micro-batches.

    A graph repeats what it was captured with: no number of the host's may change from micro-batch to micro-batch.
    """
    architecture, recipe, layout = launch.workload
    reasons = (
        (launch.device != "cuda", only_cuda(launch)),
        (not launch.compiled, "no compiled block"),
        (layout.ranks > 1, "several ranks"),
        (layout.recomputation is not Recomputation.NONE, "recomputation, which reads the generator's state"),
        (layout.offload is not Offload.NONE, "state on the host"),
        (not layout.fused_attention, "attention that stores its scores, whose mask the host sends"),
        (architecture.rotary_dim is not None, "a rotation, whose angles the host sends"),
        (architecture.experts is not None, "experts, whose rows the host counts"),
        (recipe.precision.scaled, "a loss scale, which the host adapts"),
        (recipe.batch_rampup_start is not None, "a batch that grows"),
        (accumulation(recipe, layout) == 1, "one micro-batch a step"),
    )
    return next((words for applies, words in reasons if applies), "")


def products_by_cublaslt(launch: PlannedLaunch) -> str:
    """Why the linear layers of blocks cannot be computed by cuBLASLt's epilogues and tuned algorithms."""
    _, recipe, layout = launch.workload
    reasons = (
        (launch.device != "cuda", only_cuda(launch)),
        (recipe.precision is Precision.FP32, "fp32, whose products PyTorch may compute in TF32"),
        (recipe.product_format.casts, "products in 8 bits, with an operator of their own"),
        (layout.tensor_parallel > 1, "tensor parallelism, whose weights are distributed tensors"),
        (layout.fully_sharded, "fully sharded weights"),
        (halves_backward(layout), "a schedule that computes gradients of inputs and of weights apart"),
    )
    return next((words for applies, words in reasons if applies), "")


def updates_in_one_pass(launch: PlannedLaunch) -> str:
    """Why the update cannot be one pass over memory."""
    _, recipe, layout = launch.workload
    reasons = (
        (launch.device != "cuda", only_cuda(launch)),
        (recipe.optimizer not in (Optimizer.ADAM, Optimizer.ADAMW), "another optimizer than Adam"),
        (recipe.precision is Precision.BF16_PURE, "moments in bf16"),
        (not layout.flushes, "a pipeline that keeps versions of its weights"),
    )
    return next((words for applies, words in reasons if applies), "")


def epilogues(launch: PlannedLaunch) -> str:
    """Why no epilogue of a GEMM has a GELU or the gradient of a bias."""
    architecture = launch.workload.architecture
    bias = architecture.bias
    has_bias = bias.attention or bias.projection or bias.feed_forward
    if not has_bias and architecture.activation is not Activation.GELU_TANH:
        return "neither a bias nor GELU by tanh's approximation"
    return products_by_cublaslt(launch)


# An optimization that is missing here is not built yet
RULES: Mapping[Optimization, OptimizationRule] = {
    Optimization.EPILOGUES: OptimizationRule(epilogues, is_default=True, package="triton"),
    Optimization.TUNED_GEMMS: OptimizationRule(products_by_cublaslt, package="triton"),
    Optimization.PACKED_GRADIENTS: OptimizationRule(one_gradient, package="cudnn"),
    Optimization.ACROSS_BLOCKS: OptimizationRule(sums_with_norms, is_default=True),
    Optimization.FLASH_ATTENTION_3: OptimizationRule(flash_attention_3, package="flash_attn_interface"),
    Optimization.MICRO_BATCH_GRAPH: OptimizationRule(captured_passes),
    Optimization.ONE_PASS_UPDATE: OptimizationRule(updates_in_one_pass, is_default=True, package="triton"),
    Optimization.DEPENDENT_LAUNCH: OptimizationRule(dependent_launches),
}


def default_optimizations(launch: PlannedLaunch) -> tuple[Optimization, ...]:
    """The optimizations that a launch has where nothing else is asked."""
    rules = [(name, RULES[name]) for name in Optimization if name in RULES]
    return tuple(name for name, rule in rules if rule.is_default and rule.is_installed and not rule.why_not(launch))


def lacking_by_default(launch: PlannedLaunch) -> tuple[str, ...]:
    """In words, the packages without which the launch has not all optimizations that it would have by default."""
    lacking: dict[str, list[str]] = {}
    for name, rule in RULES.items():
        if rule.is_default and not rule.is_installed and not rule.why_not(launch):
            lacking.setdefault(PACKAGES[rule.package].name, []).append(name.value)
    return tuple(f"without {', '.join(names)}: {package} is not installed" for package, names in lacking.items())
