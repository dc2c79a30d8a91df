"""A configuration becomes the shape that it describes, fact by fact with its source, or is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.architecture import (
    Activation,
    Architecture,
    Balancing,
    Gate,
    Mask,
    Norm,
    Position,
    QueryKeyNorm,
    Residual,
    RotaryScaling,
)
from reference_runs.catalog import reference_run
from reference_runs.errors import InputError
from reference_runs.hugging_face.aliases import ALIASES
from reference_runs.hugging_face.configuration import USUAL_SEQUENCE
from reference_runs.hugging_face.families import FAMILIES, imported
from reference_runs.layout import Layout
from reference_runs.sourced import Kind
from suite.predict.analytic.parameters import chunk_tensors, parameter_count
from tests.support.configurations import (
    BANDS,
    GPT_OSS,
    KIMI_K2,
    KIMI_K2_PARAMETERS,
    PUBLISHED,
    configuration_of,
    written,
)

RECORDED = {
    **{"bloom-176b": "bloom", "opt-175b": "opt", "gpt-neox-20b": "gpt_neox", "deepseek-v3": "deepseek_v3"},
    **dict.fromkeys(("gpt2-124m", "gpt2-350m", "gpt2-774m", "gpt2-1558m"), "gpt2"),
    **dict.fromkeys(("llama2-7b", "llama2-13b", "llama2-70b"), "llama"),
    **dict.fromkeys(("llama3.1-8b", "llama3.1-70b", "llama3.1-405b"), "llama"),
    **dict.fromkeys(("mixtral-8x7b", "mixtral-8x22b"), "mixtral"),
    **dict.fromkeys(("qwen3-30b-a3b", "qwen3-235b-a22b"), "qwen3_moe"),
    **dict.fromkeys(("nemotron4-15b", "nemotron4-340b"), "nemotron"),
    **{"glm-4.5-air": "glm4_moe", "kimi-k2": "kimi_k2", "gpt-oss-120b": "gpt_oss"},
    **{"qwen3-next-80b-a3b": "qwen3_next", "nemotron-h-56b": "nemotron_h"},
}
LLAMA = PUBLISHED["llama2-7b"][0]


def architecture(directory: Path, values: dict[str, Any], **options: Any) -> Architecture:
    return imported(written(directory / "config.json", values), **options).architecture


def test_public_models_of_every_family_have_their_published_parameters_to_the_unit(tmp_path: Path) -> None:
    shapes = {name: architecture(tmp_path, values) for name, (values, _) in PUBLISHED.items()}
    published = {name: parameters for name, (_, parameters) in PUBLISHED.items()}
    assert {name: parameter_count(shape) for name, shape in shapes.items()} == published
    tensors = {name: chunk_tensors(shape, Layout(), chunk=0) for name, shape in shapes.items()}
    assert {name: sum(tensor.elements for tensor in each) for name, each in tensors.items()} == published
    assert {values["model_type"] for values, _ in PUBLISHED.values()} | {"nemotron", *ALIASES} == FAMILIES.keys()


def test_types_that_are_others_by_another_name_have_their_published_parameters(tmp_path: Path) -> None:
    widths = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-5}
    yi = {"num_key_value_heads": 4, "intermediate_size": 11008, "vocab_size": 64000}
    internlm2 = {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 92544, "bias": False}
    software = {"attn_implementation": "eager", "auto_map": {"AutoConfig": "configuration_internlm2.InternLM2Config"}}
    of = {"Yi": widths | yi, "internlm2": widths | internlm2 | software}
    counted = {kind: parameter_count(architecture(tmp_path, {"model_type": kind} | of[kind])) for kind in of}
    assert counted == {"Yi": 6_061_035_520, "internlm2": 7_737_708_544}


def test_kimi_k2_is_deepseek_v3_by_another_name(tmp_path: Path) -> None:
    a = architecture(tmp_path, KIMI_K2)
    assert parameter_count(a) == KIMI_K2_PARAMETERS
    assert (a.experts, a.dense_layers, a.balancing, a.rotary_scaling) == (384, 1, Balancing.BIAS, RotaryScaling.YARN)


@pytest.mark.parametrize(
    ("key", "dtype", "precision"),
    [
        ("torch_dtype", "bfloat16", "bf16"),
        ("dtype", "float16", "fp16"),
        ("torch_dtype", "float32", "bf16"),
        ("torch_dtype", "float8_e4m3fn", None),
        ("torch_dtype", None, None),
    ],
)
def test_the_dtype_of_the_weights_suggests_the_precision(
    key: str, dtype: str | None, precision: str | None, tmp_path: Path
) -> None:
    run = imported(written(tmp_path / "config.json", LLAMA | {key: dtype}))
    fact = run.facts.get("recipe.precision")
    assert (fact and fact.value) == precision
    assert fact is None or (fact.kind, fact.source) == (Kind.ASSUMED, f"config {key}")
    assert run.not_used == ()


def test_glm_4_5_has_experts_as_deepseek_v3_and_norms_of_queries_where_it_says_so(tmp_path: Path) -> None:
    values = PUBLISHED["glm-4.5-air"][0]
    run = imported(written(tmp_path / "config.json", values), sequence=4096)
    a = run.architecture
    assert (a.rotary_dim, a.attention_bias, a.gate, a.expert_groups) == (64, True, Gate.SIGMOID, None)
    assert [note.partition(":")[0] for note in run.notes] == ["num_nextn_predict_layers = 1"]
    normed = architecture(tmp_path, values | {"use_qk_norm": True})
    assert normed.query_key_norm is QueryKeyNorm.HEAD
    assert parameter_count(normed) == parameter_count(a) + 46 * 2 * 128


def test_gpt_oss_extends_its_context_by_yarn_without_rounded_ends(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
    values = GPT_OSS | {"rope_scaling": yarn}
    a = architecture(tmp_path, values, sequence=4096)
    assert (a.sliding_window, a.full_every, a.full_layers, a.attention_sinks, a.expert_bias) == (128, 2, 18, True, True)
    assert (a.rotary_scaling, a.rotary_scaling_factor) == (RotaryScaling.BANDS, None)
    longer = architecture(tmp_path, values)
    assert (longer.rotary_scaling, longer.rotary_scaling_factor) == (RotaryScaling.YARN_UNROUNDED, 32.0)
    assert longer.rotary_scaling_amplitude == pytest.approx(1.3465735903)  # 0.1 ln 32 + 1


def test_nemotron_has_squared_relu_and_biases_of_norms_alone(tmp_path: Path) -> None:
    values = {"model_type": "nemotron", "num_hidden_layers": 32, "hidden_size": 6144, "num_attention_heads": 48}
    values |= {"num_key_value_heads": 8, "intermediate_size": 24576, "vocab_size": 256000}
    a = architecture(tmp_path, values)
    attention, norms = 2 * 6144 * 6144 + 2 * 6144 * 1024, (2 * 32 + 1) * 2 * 6144
    assert parameter_count(a) == 32 * (attention + 2 * 6144 * 24576) + norms + 2 * 256000 * 6144
    assert (a.activation, a.rotary_dim, a.norm_bias) == (Activation.RELU_SQUARED, 64, True)


def test_the_configuration_of_a_recorded_run_gives_its_shape_again(tmp_path: Path) -> None:
    # a configuration has the rows that are stored, not how many of them are tokens, and no rate of training
    untold = {"balancing_rate": None, "sequence_loss_weight": None}
    for run, kind in RECORDED.items():
        recorded = reference_run(run).architecture
        found = architecture(tmp_path, configuration_of(recorded, kind))
        assert parameter_count(found) == parameter_count(recorded), run
        assert found == msgspec.structs.replace(recorded, vocabulary=recorded.padded_vocabulary, **untold), run


COMMON: dict[str, Any] = {"embedding_norm": False, "mask": Mask.CAUSAL, "residual": Residual.SEQUENTIAL}


@st.composite
def shapes(draw: st.DrawFn, kind: str) -> Architecture:
    """Shapes that a family's configurations describe."""
    kv_heads, group, head_dim = draw(st.integers(1, 4)), draw(st.integers(1, 4)), 4 * draw(st.integers(1, 16))
    heads, llama = kv_heads * group, kind in ("llama", "qwen3")
    vocabulary = draw(st.integers(2, 300))
    shape = COMMON | {
        "layers": draw(st.integers(1, 9)),
        "hidden": 2 * draw(st.integers(1, 64)) if llama else heads * head_dim,
        "heads": heads,
        "head_dim": head_dim,
        "kv_heads": kv_heads if llama else heads,
        "ffn_hidden": draw(st.integers(1, 999)),
        "vocabulary": vocabulary,
        "padded_vocabulary": vocabulary,
        "sequence": draw(st.integers(1, 9999)),
        "norm": Norm.PRE_RMS_NORM if llama else Norm.PRE_LAYER_NORM,
        "norm_epsilon": 1e-5 if kind == "opt" else draw(st.sampled_from([1e-5, 1e-6])),
        "activation": draw(st.sampled_from([Activation.GELU, Activation.GELU_TANH])),
        "biases": True,
        "tied_embeddings": draw(st.booleans()),
        "position": Position.LEARNED,
    }
    base = draw(st.sampled_from([10000.0, 500000.0]))
    rotary = {"position": Position.ROTARY, "rotary_dim": head_dim, "rotary_base": base}
    of_kind: dict[str, dict[str, Any]] = {
        "gpt2": {},
        "opt": {"activation": Activation.RELU, "extra_positions": 2},
        "bloom": {"activation": Activation.GELU_TANH, "position": Position.ALIBI, "embedding_norm": True},
        "gpt_neox": rotary | {"rotary_dim": head_dim // 2, "residual": draw(st.sampled_from(Residual))},
        "llama": rotary | {"activation": Activation.SWIGLU, "biases": draw(st.booleans())},
        "qwen3": rotary | {"activation": Activation.SWIGLU, "biases": False, "query_key_norm": QueryKeyNorm.HEAD},
    }
    shape |= of_kind[kind]
    if kind == "llama":
        if draw(st.booleans()):
            shape |= {"attention_bias": not shape["biases"], "projection_bias": not shape["biases"]}
        if draw(st.booleans()):
            factors = {"rotary_scaling_factor": 8.0, "rotary_scaling_low": 1.0, "rotary_scaling_high": 4.0}
            shape |= factors | {"rotary_scaling_sequence": draw(st.integers(1, 9999))}
            if draw(st.booleans()):
                amplitude = draw(st.sampled_from([None, 0.5, 1.2]))
                ends = draw(st.sampled_from([RotaryScaling.YARN, RotaryScaling.YARN_UNROUNDED]))
                shape |= {"rotary_scaling": ends, "rotary_scaling_amplitude": amplitude}
    if kind == "qwen3" and draw(st.booleans()):
        shape["sliding_window"] = draw(st.integers(1, 9999))
    return Architecture(**shape)


@st.composite
def expert_shapes(draw: st.DrawFn, kind: str) -> Architecture:
    """Shapes of mixtures of experts that a family's configurations describe."""
    shape = draw(shapes("qwen3"))
    experts, groups = 2 * draw(st.integers(2, 20)), draw(st.sampled_from([1, 2]))
    weight = draw(st.sampled_from([None, 0.001, 0.5]))
    balancing = Balancing.NONE if weight is None else Balancing.AUXILIARY_LOSS
    common = {"experts": experts, "experts_per_token": draw(st.integers(1, experts // groups))}
    common |= {"gate": Gate.SOFTMAX_OF_CHOSEN, "balancing": balancing, "auxiliary_loss_weight": weight}
    width = {"expert_ffn_hidden": draw(st.integers(1, 99)), "dense_layers": draw(st.integers(0, shape.layers - 1))}
    plain = {"query_key_norm": QueryKeyNorm.NONE}
    if kind == "mixtral":
        return msgspec.structs.replace(shape, **plain, **common)
    if kind == "qwen3_moe":
        gate = draw(st.sampled_from([Gate.SOFTMAX, Gate.SOFTMAX_OF_CHOSEN]))
        return msgspec.structs.replace(shape, **(common | width | {"gate": gate}))
    rotated, rest = 2 * draw(st.integers(1, 9)), draw(st.integers(1, 20))
    latent = {"kv_heads": shape.heads, "head_dim": rotated + rest, "rotary_dim": rotated, "sliding_window": None}
    latent |= {"query_rank": draw(st.none() | st.integers(1, 99)), "key_value_rank": draw(st.integers(1, 99))}
    latent |= {"value_head_dim": draw(st.integers(1, 30)), "gate": Gate.SIGMOID, "balancing": Balancing.BIAS}
    latent |= {"gate_scale": draw(st.sampled_from([None, 2.5])), "shared_experts": draw(st.integers(0, 3))}
    grouped = (groups, 1) if groups > 1 else (None, None)
    latent |= {"expert_groups": grouped[0], "groups_per_token": grouped[1], "auxiliary_loss_weight": None}
    return msgspec.structs.replace(shape, **(plain | common | width | latent))


OF_KIND = dict.fromkeys(("gpt2", "opt", "bloom", "gpt_neox", "llama", "qwen3"), shapes)
OF_KIND |= dict.fromkeys(("mixtral", "qwen3_moe", "deepseek_v3"), expert_shapes)


@pytest.mark.parametrize("kind", OF_KIND)
@given(data=st.data())
def test_shape_to_configuration_and_back_is_the_same_shape(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shape = data.draw(OF_KIND[kind](kind))
    shape.check("drawn")
    values = configuration_of(shape, kind)
    expected = msgspec.structs.replace(shape, sequence=min(shape.sequence, USUAL_SEQUENCE))
    if shape.position is Position.LEARNED:
        rows = shape.sequence + shape.extra_positions
        expected = msgspec.structs.replace(expected, extra_positions=rows - expected.sequence)
    assert architecture(tmp_path_factory.getbasetemp(), values) == expected


def test_facts_name_the_key_that_they_come_from(tmp_path: Path) -> None:
    run = imported(written(tmp_path / "config.json", LLAMA | {"initializer_range": 0.006}))
    sources = {key: fact.source for key, fact in run.facts.items()}
    assert sources["architecture.layers"] == "config num_hidden_layers"
    assert sources["architecture.rotary_base"] == "transformers default: the configuration has no rope_theta"
    assert sources["architecture.norm"] == "transformers model_type llama"
    assert sources["architecture.head_dim"] == "calculation hidden / heads"
    assert (sources["recipe.init_std"], run.facts["recipe.init_std"].value) == ("config initializer_range", 0.006)
    assert {source.split()[0] for source in sources.values()} == run.sources.keys()
    assert run.facts["architecture.sequence"].kind is Kind.ASSUMED
    assert not [key for key in run.facts if not key.startswith(("architecture.", "recipe."))]


def test_the_sequence_of_training_is_what_the_user_says(tmp_path: Path) -> None:
    run = imported(written(tmp_path / "config.json", LLAMA | {"max_position_embeddings": 4096}), sequence=1024)
    assert (run.architecture.sequence, run.facts["architecture.sequence"].kind) == (1024, Kind.STATED)
    gpt2, parameters = PUBLISHED["gpt2-xl"]
    a = architecture(tmp_path, gpt2, sequence=512)
    assert (a.sequence, a.extra_positions, parameter_count(a)) == (512, 512, parameters)
    with pytest.raises(InputError, match=r"--sequence: more positions than the table has; got 1025, allowed: at most"):
        architecture(tmp_path, gpt2, sequence=1025)


YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
QWEN2 = PUBLISHED["qwen2-7b"][0]
FALCON, OLMO, OPT, MPT = (PUBLISHED[name][0] for name in ("falcon-7b", "olmo-7b", "opt-6.7b", "mpt-7b"))
NEOX, V3 = PUBLISHED["pythia-12b"][0], PUBLISHED["deepseek-v3"][0]
MIXTRAL, QWEN3_MOE = PUBLISHED["mixtral-8x7b"][0], PUBLISHED["qwen3-30b-a3b"][0]
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        GPT_OSS | {"layer_types": ["full_attention"] * 36},
        "allowed: sliding_attention, and full_attention in every layer 2",
    ),
    (
        PUBLISHED["qwen3-next-80b-a3b"][0] | {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
        "allowed: linear_attention, and full_attention in every so many layers",
    ),
    (PUBLISHED["qwen3-next-80b-a3b"][0] | {"mlp_only_layers": [3]}, "mlp_only_layers; got [3], allowed: [], null"),
    (
        PUBLISHED["nemotron-h-8b"][0] | {"hybrid_override_pattern": "MEM*"},
        "allowed: M or linear_attention, * or full_attention, - or mlp: no experts",
    ),
    (PUBLISHED["nemotron-h-8b"][0] | {"hybrid_override_pattern": "M-M--*"}, "and as many - as M"),
    ({"model_type": "mamba"}, "model_type 'mamba' is not described: it has linear attention or state-space layers"),
    (
        {"model_type": "lama"},
        "model_type 'lama' is not described: no model of that type was read; `predict` and `fit` trace it; "
        "did you mean llama?",
    ),
    (LLAMA | {"hidden_act": "snake"}, 'hidden_act; got "snake", allowed: silu, swish, gelu, '),
    (LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}}, 'rope_scaling.rope_type; got "linear", '),
    (
        LLAMA | {"rope_parameters": {"rope_type": "longrope"}},
        'rope_parameters.rope_type; got "longrope", allowed: default, llama3',
    ),
    (
        LLAMA | {"rope_scaling": YARN | {"type": "dynamic"}},
        'rope_scaling.rope_type; got "dynamic", allowed: default, llama3, yarn, or --sequence 4096 or less',
    ),
    (LLAMA | {"rope_scaling": BANDS | {"factor": None}}, "missing key 'rope_scaling.factor'"),
    (LLAMA | {"rope_scaling": BANDS | {"factor": "8"}}, 'rope_scaling.factor; got "8", allowed: a number'),
    (LLAMA | {"rope_scaling": BANDS | {"beta": 1}}, "rope_scaling: unknown key 'beta' with rope_type llama3"),
    (LLAMA | {"rope_parameters": {"full_attention": {}}}, "one object with a rope_type, for all"),
    (LLAMA | {"final_logit_softcapping": 30.0}, "final_logit_softcapping; got 30.0, allowed: null or absent"),
    (LLAMA | {"residual_multiplier": 0.2}, "residual_multiplier; got 0.2, allowed: null or absent"),
    (LLAMA | {"num_local_experts": 8}, "num_local_experts; got 8, allowed: null or absent"),
    (NEOX | {"num_key_value_heads": 8}, "num_key_value_heads; got 8, allowed: null or absent"),
    (V3 | {"topk_method": "greedy"}, 'topk_method; got "greedy", allowed: "noaux_tc"'),
    (V3 | {"scoring_func": "softmax"}, 'scoring_func; got "softmax", allowed: "sigmoid"'),
    (MIXTRAL | {"router_jitter_noise": 0.1}, "router_jitter_noise; got 0.1, allowed: 0"),
    (QWEN3_MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step; got 2, allowed: 1"),
    (QWEN3_MOE | {"mlp_only_layers": [5]}, "mlp_only_layers; got [5], allowed: the first layers"),
    (
        PUBLISHED["qwen1.5-moe-a2.7b"][0] | {"shared_expert_intermediate_size": 5000},
        "shared_expert_intermediate_size; got 5000, allowed: a multiple of moe_intermediate_size = 1408",
    ),
    (QWEN3_MOE | {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size; got 64"),
    (LLAMA | {"rope_scaling": YARN | {"short_factor": 2}}, "unknown key 'short_factor' with rope_type yarn"),
    (LLAMA | {"rope_scaling": YARN | {"truncate": 1}}, "rope_scaling.truncate; got 1, allowed: true, false"),
    (
        LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        "missing key 'rope_scaling.original_max_position_embeddings'",
    ),
    (
        QWEN2 | {"use_sliding_window": True, "max_window_layers": 20},
        "max_window_layers; got 20, allowed: 0, or as many as layers",
    ),
    (QWEN2 | {"layer_types": ["full_attention", "sliding_attention"] * 14}, "layer_types; got ["),
    (OPT | {"do_layer_norm_before": False}, "do_layer_norm_before; got false, allowed: true"),
    (FALCON | {"alibi": True}, "alibi; got true, allowed: false, null"),
    (OLMO | {"clip_qkv": 8.0}, "clip_qkv; got 8.0, allowed: null"),
    (MPT | {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln; got true, allowed: false"),
    ({key: value for key, value in LLAMA.items() if key != "hidden_size"}, "missing key 'hidden_size'"),
    (LLAMA | {"hidden_size": "4096"}, 'hidden_size; got "4096", allowed: a whole number of 1 or'),
    (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers; got true, allowed: a whole number"),
    (LLAMA | {"attention_bias": 1}, "attention_bias; got 1, allowed: true, false"),
    (LLAMA | {"vocab_size": {}}, "vocab_size; got {}, allowed: a number, a text, true or false"),
    (LLAMA | {"num_attention_heads": 33}, "33 heads do not divide hidden; got 4096"),
    (LLAMA | {"num_key_value_heads": 5}, "architecture.kv_heads does not divide heads = 32; got 5"),
]


@pytest.mark.parametrize(("values", "line"), REFUSED)
def test_what_nothing_describes_is_refused_by_name(values: dict[str, Any], line: str, tmp_path: Path) -> None:
    path = written(tmp_path / "config.json", values)
    with pytest.raises(InputError) as refusal:
        imported(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert line in str(refusal.value)


def test_an_extended_context_is_left_out_of_training_before_it(tmp_path: Path) -> None:
    values = LLAMA | {"rope_scaling": YARN, "max_position_embeddings": 163840}
    run = imported(written(tmp_path / "config.json", values), sequence=4096)
    assert run.notes == ("rope_scaling: yarn is left out: sequences of up to 4096 tokens are trained without it",)


def test_deepseek_v3_is_trained_before_its_extension_and_without_the_modules_that_are_left_out(tmp_path: Path) -> None:
    run = imported(written(tmp_path / "config.json", V3 | {"rope_scaling": YARN}), sequence=4096)
    left_out, extension = sorted(run.notes)
    assert left_out.startswith("num_nextn_predict_layers = 1: the modules of multi-token prediction are left out")
    assert extension.startswith("rope_scaling: yarn is left out")
    assert run.not_used == ("ep_size", "quantization_config")


def test_shared_experts_of_qwen_are_as_wide_as_so_many_experts_and_have_a_gate(tmp_path: Path) -> None:
    a = architecture(tmp_path, PUBLISHED["qwen1.5-moe-a2.7b"][0])
    assert (a.experts, a.experts_per_token, a.shared_experts, a.shared_gate) == (60, 4, 4, True)
    assert a.gate is Gate.SOFTMAX


def test_gemma_scales_its_embeddings(tmp_path: Path) -> None:
    assert architecture(tmp_path, PUBLISHED["gemma-7b"][0]).scaled_embedding
    assert not architecture(tmp_path, LLAMA).scaled_embedding


def test_yarn_of_qwen_slows_its_ramp_down_and_raises_queries_and_keys(tmp_path: Path) -> None:
    """Qwen2.5's model card: rope_scaling for inputs beyond 32,768 tokens."""
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    a = architecture(tmp_path, QWEN2 | {"rope_scaling": yarn})
    numbers = (a.rotary_scaling_factor, a.rotary_scaling_low, a.rotary_scaling_high, a.rotary_scaling_sequence)
    assert (a.rotary_scaling, numbers) == (RotaryScaling.YARN, (4.0, 1.0, 32.0, 32768))
    assert a.rotary_scaling_amplitude == pytest.approx(1.1386294361)  # 0.1 ln 4 + 1
    assert a.score_scale is None
    assert parameter_count(a) == PUBLISHED["qwen2-7b"][1]


@pytest.mark.parametrize(
    ("weights", "amplitude"), [((1.0, 1.0), None), ((0.707, 1.0), 0.921042), ((None, 1.0), 1.368888)]
)
def test_yarn_of_deepseek_scales_scores(
    weights: tuple[float | None, float], amplitude: float | None, tmp_path: Path
) -> None:
    """By (0.1 ln 40 + 1)^2; what queries and keys are raised by is m(mscale) over m(mscale_all_dim)."""
    of_all = {"mscale": weights[0], "mscale_all_dim": weights[1], "beta_fast": 32, "beta_slow": 1}
    a = architecture(tmp_path, V3 | {"rope_scaling": YARN | of_all})
    assert a.score_scale == pytest.approx(1.368888**2, rel=1e-6)
    assert a.rotary_scaling_amplitude == (amplitude and pytest.approx(amplitude, rel=1e-6))
    assert parameter_count(a) == PUBLISHED["deepseek-v3"][1]


@pytest.mark.parametrize("off", [None, False, 0, {}, []])
def test_a_key_that_is_switched_off_is_listed(off: object, tmp_path: Path) -> None:
    run = imported(written(tmp_path / "config.json", LLAMA | {"final_logit_softcapping": off, "eos_token_id": 2}))
    assert run.not_used == ("eos_token_id", "final_logit_softcapping")


def test_both_forms_of_rotary_parameters_are_one(tmp_path: Path) -> None:
    old = LLAMA | {"rope_theta": 5e5, "rope_scaling": BANDS}
    new = LLAMA | {"rope_parameters": BANDS | {"rope_theta": 5e5}}
    assert architecture(tmp_path, old) == architecture(tmp_path, new)
    neox = PUBLISHED["pythia-12b"][0]
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25}}
    assert architecture(tmp_path, neox) == architecture(tmp_path, neox | rotary)


@pytest.mark.parametrize(("kind", "window"), {"mistral": 4096, "llama": None}.items())
def test_a_window_that_is_absent_is_the_default_and_one_that_is_null_is_none(
    kind: str, window: int | None, tmp_path: Path
) -> None:
    values = LLAMA | {"model_type": kind}
    assert architecture(tmp_path, values).sliding_window == window
    assert architecture(tmp_path, values | {"sliding_window": None}).sliding_window is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "not valid JSON"),
        ("[]", "no configuration of a model: an object with a model_type is expected"),
        ('{"model_type": 3}', "no configuration of a model"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=line):
        imported(path)
    with pytest.raises(InputError, match="cannot read the configuration: No such file or directory"):
        imported(tmp_path / "none.json")
