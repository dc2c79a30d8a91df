"""Bytes that autograd keeps of any decoder equal the simulation's."""

from __future__ import annotations

import msgspec
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import miniatures, reference_run
from reference_runs.layout import Layout, Recomputation
from reference_runs.miniature import miniature
from reference_runs.run import Architecture, Mask, Norm, Position, Precision, Residual, Workload
from suite.execute.measure.counters import KeptForBackward
from suite.execute.model.decoder import Decoder
from suite.execute.precision import DTYPES
from suite.job.options import KernelChoice, Optimization, StepOptions, TrainingOptions
from suite.predict.simulation.optimizations import PlannedLaunch, sums_with_norms
from suite.predict.simulation.step_memory import executed_activation_bytes
from tests.support.examples import examples
from tests.support.launches import FP32_WITHOUT_DROPOUT
from tests.support.strategies import BLOOM, routed_architectures, varied_architectures

SAMPLES = 2


def is_executed(architecture: Architecture) -> bool:
    is_post_norm = architecture.norm in (Norm.DEEP_NORM, Norm.OUTPUT_RMS_NORM)
    if is_post_norm and (architecture.residual is Residual.PARALLEL or architecture.top_query_layer):
        return False
    learned = architecture.position is Position.LEARNED
    latent = architecture.key_value_rank is not None
    if latent and architecture.norm is Norm.DEEP_NORM:
        return False
    return architecture.mask is Mask.CAUSAL and (learned or not architecture.top_query_layer)


@examples(200)
@given(
    (varied_architectures() | routed_architectures()).filter(is_executed),
    st.sampled_from([Precision.FP32, Precision.BF16]),
    st.sampled_from([Recomputation.NONE, Recomputation.SELECTIVE, Recomputation.FULL]),
    st.booleans(),
    st.booleans(),
)
def test_kept_bytes_are_those_that_autograd_keeps(
    architecture: Architecture, precision: Precision, recomputation: Recomputation, fused: bool, across: bool
) -> None:
    # of sizes of one PyTorch copies nothing
    architecture = msgspec.structs.replace(
        architecture,
        sequence=architecture.sequence + 1,
        hidden=architecture.hidden + 1,
        ffn_hidden=architecture.ffn_hidden + 1,
    )
    windowed = (architecture.sliding_window or architecture.sequence) < architecture.sequence
    fused = fused and architecture.position is not Position.ALIBI and not windowed
    recipe = msgspec.structs.replace(BLOOM.recipe, **(FP32_WITHOUT_DROPOUT | {"precision": precision}))
    layout = Layout(micro_batch=SAMPLES, recomputation=recomputation, fused_attention=fused)
    workload = Workload(architecture, recipe, layout)
    across = across and not sums_with_norms(PlannedLaunch(workload, "cuda", compiled=True, kernels=KernelChoice.TORCH))
    decoder = Decoder(architecture, recipe, fused_attention=fused, across_blocks=across).to(DTYPES[precision])
    decoder.recompute(recomputation)
    tokens = torch.randint(architecture.vocabulary, (SAMPLES, architecture.sequence + 1))
    kept = KeptForBackward(lambda: list(decoder.parameters()))
    with kept.hooks():
        loss = decoder(tokens[:, :-1], tokens[:, 1:])
    optimizations = (Optimization.ACROSS_BLOCKS,) if across else ()
    options = StepOptions(training_options=TrainingOptions(rung="", optimizations=optimizations))
    assert kept.bytes() == executed_activation_bytes(workload, options, stage=0)
    loss.backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())


def test_kept_bytes_of_attention_with_one_gradient_are_those_that_autograd_keeps() -> None:
    small = miniature(reference_run(miniatures()["gpt2-mini"]), "cpu", ranks=1)
    architecture = msgspec.structs.replace(small.architecture, layers=2, sequence=37)
    recipe = msgspec.structs.replace(BLOOM.recipe, **(FP32_WITHOUT_DROPOUT | {"precision": Precision.BF16}))
    workload = Workload(architecture, recipe, Layout(micro_batch=SAMPLES, fused_attention=True))
    for names in ((), (Optimization.PACKED_GRADIENTS,)):
        decoder = Decoder(architecture, recipe, fused_attention=True, packed_gradients=bool(names)).to(torch.bfloat16)
        tokens = torch.randint(architecture.vocabulary, (SAMPLES, architecture.sequence + 1))
        kept = KeptForBackward(lambda decoder=decoder: list(decoder.parameters()))  # type: ignore[misc]
        with kept.hooks():
            decoder(tokens[:, :-1], tokens[:, 1:]).backward()
        options = StepOptions(training_options=TrainingOptions(rung="", optimizations=names))
        assert kept.bytes() == executed_activation_bytes(workload, options, stage=0)
