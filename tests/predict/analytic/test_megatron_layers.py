from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import layout_mistakes, reference_run
from reference_runs.layout import Layout, Recomputation, RecomputedModule, layout_text, parse_layout
from reference_runs.run import Activation, ProductFormat, Workload
from reference_runs.stack import Keeping, Modules, stack
from suite.predict.analytic.activations import layer_activation_bytes, micro_batch_bytes
from suite.predict.analytic.flop import hardware_flop, recomputed_share
from suite.predict.analytic.latent_attention import latent_products
from suite.predict.analytic.megatron_layers import kept_by_layer
from suite.predict.analytic.stage_layers import layer_kinds
from suite.predict.analytic.stage_memory import gradients_in_passes, stage_memory
from suite.predict.analytic.traffic import expert_traffic

CORE, NEMO, HAI, GENERIC = (
    stack(name).switches.keeping for name in ("megatron-core", "megatron-core-nemo-2", "hai-llm", "generic")
)
DEEPSEEK = reference_run("deepseek-v3")
DENSE, MIXTURE = (
    DEEPSEEK.workload._replace(architecture=kind) for kind, _ in layer_kinds(DEEPSEEK.workload.architecture)
)
LLAMA = reference_run("llama3.1-405b").workload
TOKENS, HIDDEN, SENT = 4096, 7168, 4096 * 8


def recomputing(workload: Workload, *modules: RecomputedModule) -> Workload:
    selective = msgspec.structs.replace(
        workload.layout, recomputation=Recomputation.SELECTIVE, recomputed_modules=modules
    )
    return workload._replace(layout=selective)


def freed_bytes(workload: Workload, module: RecomputedModule) -> int:
    unit = micro_batch_bytes(recomputing(workload, module), CORE)
    return unit.layer - unit.unit


def in_16_bit(workload: Workload) -> Workload:
    return workload._replace(recipe=msgspec.structs.replace(workload.recipe, product_format=ProductFormat.NONE))


def test_a_fused_gate_is_one_kernel_that_keeps_its_input_alone() -> None:
    ours, theirs = layer_activation_bytes(LLAMA, CORE), layer_activation_bytes(LLAMA, GENERIC)
    assert theirs.pop("activated half") == 2 * 8192 * 53248 // 8
    assert ours == theirs
    plain = LLAMA._replace(architecture=msgspec.structs.replace(LLAMA.architecture, activation=Activation.GELU))
    assert layer_activation_bytes(plain, CORE) == layer_activation_bytes(plain, GENERIC)


def test_gates_that_weigh_activations_need_no_output_of_experts() -> None:
    workload = in_16_bit(MIXTURE)
    core, other = layer_activation_bytes(workload, CORE), layer_activation_bytes(workload, GENERIC)
    assert other.pop("expert output") == 2 * SENT * HIDDEN
    assert core.pop("weights of rows") == 4 * SENT
    assert core.keys() == {kind for kind in other if "half" not in kind}


def test_inputs_of_activations_are_kept_in_the_products_format_as_deepseek_did() -> None:
    core, hai = layer_activation_bytes(MIXTURE, CORE), layer_activation_bytes(MIXTURE, HAI)
    scales = 4 * 2 * 2048 * SENT // 128
    assert core["expert activation input"] == 2 * SENT * 2 * 2048
    assert hai["expert activation input"] == SENT * 2 * 2048 + scales


def test_the_fullest_operator_of_a_backward_pass_has_gradients_beside_what_is_kept() -> None:
    unit, tokens, h, f, t = micro_batch_bytes(LLAMA, CORE), 8192, 16384, 53248, 8
    # the expansion's: of its output, the residual stream before and after the sum, and of its input, which is gathered
    # too; what activation and contraction keep is free
    assert unit.backward - unit.layer == 2 * tokens * (2 * f // t + 2 * h // t + 2 * h - 3 * f // t)
    # the activation's, a rank alone: what the contraction keeps is free, and its gradient is there
    alone = LLAMA._replace(layout=Layout(fused_attention=True))
    unit = micro_batch_bytes(alone, CORE)
    assert unit.backward - unit.layer == 2 * tokens * (h + f + 2 * f - f)


@pytest.mark.parametrize("workload", [DENSE, MIXTURE, in_16_bit(MIXTURE), LLAMA])
def test_what_modules_recompute_is_what_they_no_longer_keep(workload: Workload) -> None:
    whole = micro_batch_bytes(workload, CORE).layer
    freed = {}
    for number in (1, 2, len(RecomputedModule)):
        for modules in combinations(RecomputedModule, number):
            unit = micro_batch_bytes(recomputing(workload, *modules), CORE)
            assert unit.layer == whole
            freed[frozenset(modules)] = unit.layer - unit.unit
    assert max(freed.values()) == freed[frozenset(RecomputedModule)]
    for modules, again in freed.items():
        assert max(freed[frozenset({each})] for each in modules) <= again
        assert again <= sum(freed[frozenset({each})] for each in modules)


def test_each_module_frees_its_tensors() -> None:
    kinds = layer_activation_bytes(in_16_bit(MIXTURE), CORE)
    freed = {module: freed_bytes(in_16_bit(MIXTURE), module) for module in RecomputedModule}
    in_moe = sum(size for kind, size in kinds.items() if "expert" in kind or kind in ("gates", "weights of rows"))
    assert freed == {
        RecomputedModule.CORE_ATTENTION: kinds["log-sum-exp"],
        RecomputedModule.LAYER_NORM: kinds["attention input"] + kinds["feed-forward input"],
        RecomputedModule.LATENT_PROJECTION: sum(kinds[kind] for kind in ("query", "key", "value"))
        + kinds["normed compressed states"],
        RecomputedModule.EXPERT_ACTIVATION: kinds["expert contraction input"],
        RecomputedModule.MLP: 0,
        RecomputedModule.EXPERTS: in_moe,
        RecomputedModule.SHARED_EXPERTS: sum(size for kind, size in kinds.items() if kind.startswith("shared expert")),
    }
    dense = layer_activation_bytes(LLAMA, CORE)
    of_mlp = sum(dense[kind] for kind in ("feed-forward input", "activation input", "contraction input"))
    assert freed_bytes(LLAMA, RecomputedModule.MLP) == of_mlp
    # Transformer Engine's norms are part of its linear layers, which keep what the norm puts out
    assert freed_bytes(LLAMA, RecomputedModule.LAYER_NORM) == 0


def test_modules_that_offload_keep_their_inputs_on_the_host_until_they_are_read_again() -> None:
    def offloading(workload: Workload) -> Workload:
        return workload._replace(layout=parse_layout("offload-activations,fused", base=Layout()))

    plain = LLAMA._replace(layout=Layout(fused_attention=True))
    kinds, unit = layer_activation_bytes(plain, CORE), micro_batch_bytes(offloading(plain), CORE)
    # what no name of --offload-modules stands for
    left = ("feed-forward input", "activation input", "contraction input", "log-sum-exp")
    assert unit.unit == sum(kinds[kind] for kind in left)
    assert unit.layer == sum(kinds.values())
    # the expansion's backward pass has its norm's input back, and nothing yet of attention
    assert unit.unit < unit.backward < micro_batch_bytes(plain, CORE).backward
    assert layout_text(offloading(plain).layout).split(",")[4] == "offload-activations"
    mixture = micro_batch_bytes(offloading(in_16_bit(MIXTURE)), CORE)
    of_experts = layer_activation_bytes(in_16_bit(MIXTURE)._replace(layout=Layout(fused_attention=True)), CORE)
    assert mixture.unit == sum(
        of_experts[kind]
        for kind in of_experts
        if kind.endswith("contraction input")
        or kind in ("gates", "weights of rows", "feed-forward input", "log-sum-exp", "shared expert activation input")
        or "compressed" in kind
    )


def test_no_name_means_attention_and_arrays_of_ranks_give_each_ones_bytes() -> None:
    assert micro_batch_bytes(recomputing(LLAMA), CORE) == micro_batch_bytes(
        recomputing(LLAMA, RecomputedModule.CORE_ATTENTION), CORE
    )
    np = pytest.importorskip("numpy")
    ranks = np.array([1.0, 2.0, 4.0, 8.0])
    together = kept_by_layer(LLAMA._replace(layout=msgspec.structs.replace(LLAMA.layout, tensor_parallel=ranks)), CORE)
    for number, t in enumerate((1, 2, 4, 8)):
        alone = kept_by_layer(LLAMA._replace(layout=msgspec.structs.replace(LLAMA.layout, tensor_parallel=t)), CORE)
        assert [float(np.broadcast_to(each.bytes, 4)[number]) for each in together] == [each.bytes for each in alone]


@given(st.sets(st.sampled_from(RecomputedModule), min_size=1))
def test_words_of_modules_are_read_back_in_their_own_order(modules: set[RecomputedModule]) -> None:
    word = "recompute-" + "+".join(sorted(modules))
    layout = parse_layout(f"dp2,{word}", base=Layout())
    assert layout.recomputed == modules
    alone = modules == {RecomputedModule.CORE_ATTENTION}  # what selective means by itself
    assert layout.recomputed_modules == (() if alone else tuple(each for each in RecomputedModule if each in modules))
    assert parse_layout(layout_text(layout), base=Layout()) == layout
    other = parse_layout("recompute-moe_act+mlp", base=Layout())
    assert parse_layout(layout_text(layout, complete=True), base=other) == layout
    assert parse_layout(layout_text(layout, base=other), base=other) == layout
    assert parse_layout("recompute-selective", base=other).recomputed == other.recomputed
    assert parse_layout("recompute-full", base=layout).recomputed_modules == ()
    broken = msgspec.structs.replace(other, recomputation=Recomputation.FULL)
    assert any("recompute-selective" in str(each) for each in layout_mistakes(LLAMA._replace(layout=broken), "RUN"))


def test_modules_repeat_their_products() -> None:
    a = MIXTURE.architecture
    sizes = {name: rows * columns for name, (rows, columns) in latent_products(a).items()}
    expanded = sizes["query expansion"] + sizes["key, value expansion"]
    again = frozenset({RecomputedModule.LATENT_PROJECTION})
    assert recomputed_share(a, "query, key, value", again) * sum(sizes.values()) == expanded
    for part, share in {"query expansion": 1, "query compression": 0, "projection": 0, "attention scores": 0}.items():
        assert recomputed_share(a, part, again) == share
    routed, shared = frozenset({RecomputedModule.EXPERTS}), frozenset({RecomputedModule.SHARED_EXPERTS})
    mixture = reference_run("deepseek-v3").architecture.other_kind
    of_shared = {"shared expansion": 1, "shared contraction": 1, "expansion": 0, "contraction": 0, "router": 0}
    assert {part: recomputed_share(mixture, part, shared) for part in of_shared} == of_shared
    assert recomputed_share(mixture, "feed-forward", shared) == Fraction(1, 9)  # of 8 routed experts and a shared one
    assert [recomputed_share(each.architecture, "expansion", routed) for each in (DENSE, MIXTURE)] == [0, 1]
    assert [
        recomputed_share(each.architecture, "expansion", frozenset({RecomputedModule.MLP})) for each in (DENSE, MIXTURE)
    ] == [1, 0]
    plain = hardware_flop(LLAMA.architecture, LLAMA.layout, samples=2)
    mlp = hardware_flop(LLAMA.architecture, recomputing(LLAMA, RecomputedModule.MLP).layout, samples=2)
    b = LLAMA.architecture
    assert mlp - plain == b.layers * 6 * 2 * b.sequence * b.hidden * b.ffn_hidden
    norms = recomputing(LLAMA, RecomputedModule.LAYER_NORM).layout
    assert hardware_flop(b, norms, samples=2) == plain


def test_experts_computed_again_get_their_tokens_again() -> None:
    once, again = (
        expert_traffic(workload, stage=1, micro_batches=3)
        for workload in (MIXTURE, recomputing(MIXTURE, RecomputedModule.EXPERTS))
    )
    assert again.messages * 4 == once.messages * 6


def test_gradients_of_nemo_are_added_up_in_16_bits() -> None:
    wide, narrow = (stage_memory(LLAMA, stage=3, micro_batches=16, keeping=each) for each in (CORE, NEMO))
    assert narrow.gradients * 2 == wide.gradients
    assert (narrow.weights, narrow.master_weights, narrow.moments) == (wide.weights, wide.master_weights, wide.moments)
    # scattered in 16 bits, they are widened for the update
    assert (wide.temporary, narrow.temporary) == (0, 4 * narrow.master_weights / 4)


def test_autograds_gradients_come_with_the_backward_passes_of_a_pipeline() -> None:
    eager, piped = Keeping(Modules.EAGER, fp32_shards=True), Layout(pipeline_stages=4, virtual_stages=2)

    def made(in_flight: float, micro_batches: int, keeping: Keeping = eager) -> float:
        return gradients_in_passes(80.0, 8.0, in_flight, keeping, piped, micro_batches=micro_batches)

    assert made(4, 4) == (80 - 8) / 2  # all forward passes come first: a chunk's, less what its pass frees
    assert made(3.5, 4) == 40  # one backward pass, of the last chunk
    assert made(2, 4) == 40
    assert made(2, 6) == made(2, 40) == 80
    assert made(4, 4, CORE) == made(1, 1, CORE) == made(4, 4, GENERIC) == 80  # one buffer for all
    assert made(1, 1, GENERIC) == 0
    assert gradients_in_passes(80.0, 8.0, 1, eager, Layout(), micro_batches=1) == 0
    assert gradients_in_passes(80.0, 8.0, 1, eager, Layout(), micro_batches=2) == 80
