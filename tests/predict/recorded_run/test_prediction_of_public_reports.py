"""What people reported in public, against what is predicted: capacities, messages of ZeRO-1."""

from __future__ import annotations

import msgspec
import pytest

from reference_runs.accelerator import accelerator
from reference_runs.catalog import reference_run
from reference_runs.layout import Layout
from reference_runs.run import Norm, Position, Workload
from reference_runs.stack import stack
from suite.predict.analytic.process_groups import sent_bytes
from suite.predict.analytic.traffic import step_traffic
from suite.predict.analytic.usable_memory import usable_memory
from suite.predict.machine_model.unsaid_layout import as_executed

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("v100-sxm-32gb", 30.5, 31.7), ("a100-sxm-40gb", 39.4, 39.6), ("a100-sxm-80gb", 79.1, 79.2)],
)
def test_usable_memory_is_what_out_of_memory_messages_print_less_a_context(
    name: str, least: float, most: float
) -> None:
    memory = usable_memory(accelerator(name).board)
    assert least - 0.01 <= (memory.usable + memory.context) / GIB <= most + 0.01
    assert 0.3 < memory.context / GIB < 1


def test_a_distributed_optimizer_reduce_scatters_its_gradients() -> None:
    """NVIDIA/Megatron-LM, pull request 482: 5.16 GB of gradients sent a rank in its example, dp4,tp2,pp2; as an
    all-reduce 10.31 GB.
    """
    run = reference_run("llama2-7b")
    shape = {"ffn_hidden": 10880, "sequence": 2048, "vocabulary": 50432, "padded_vocabulary": 50432, "biases": True}
    kind = {"norm": Norm.PRE_LAYER_NORM, "position": Position.LEARNED, "rotary_dim": None, "rotary_base": None}
    architecture = msgspec.structs.replace(run.architecture, tied_embeddings=True, **shape, **kind)
    layout = Layout(data_parallel=4, tensor_parallel=2, pipeline_stages=2, zero_stage=1, micro_batch=4)
    bare = msgspec.structs.replace(run, facts={}, architecture=architecture)

    def sent(layout: Layout) -> float:
        workload = Workload(architecture, run.recipe, layout)
        reduced = [
            each
            for each in step_traffic(workload, stage=0, micro_batches=16)
            if each.axis == "dp" and each.operation != "all_gather"
        ]
        return sum(sent_bytes(each, layout) for each in reduced)

    executed = as_executed(bare, layout, None, stack("megatron-core"))
    assert sent(executed) / 1e9 == pytest.approx(5.16, abs=0.005)
    assert sent(layout) / 1e9 == pytest.approx(10.31, abs=0.005)
    assert executed.bucket_bytes == 4 * 40_000_000
    # stacks that reduce to all ranks, words that say so, and files that say so, stay as they are
    assert as_executed(bare, layout, None, stack("deepspeed-pipeline")) == layout
    assert as_executed(bare, layout, "dp4,tp2,pp2,zero1,all-reduce", stack("megatron-core")) == layout
    said = msgspec.structs.replace(bare, facts={"layout.reduce_scatter": run.facts["layout.micro_batch"]})
    assert as_executed(said, layout, None, stack("megatron-core")) == layout
    assert as_executed(bare, layout, None, stack("llm-c")).bucket_bytes == layout.bucket_bytes
