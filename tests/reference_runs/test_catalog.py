from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import RUNS, load, reference_run, run_names
from reference_runs.errors import InputError
from reference_runs.layout import Schedule
from reference_runs.run import Precision
from reference_runs.sourced import Kind
from reference_runs.units import UNITS
from suite.execute.model.position import alibi_slopes

FILES = sorted(RUNS.glob("*.toml"))
BLOOM = reference_run("bloom-176b")


def entries(path: Path) -> list[tuple[str, dict[str, Any]]]:
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    sections = {name: table for name, table in raw.items() if name not in ("title", "miniature", "sources", "measured")}
    sections |= {f"measured.{place}": table for place, table in enumerate(raw.get("measured", []))}
    return [(f"{section}.{key}", entry) for section, table in sections.items() for key, entry in table.items()]


EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_every_file_is_a_run_of_its_name() -> None:
    assert len(FILES) == len(run_names()) >= 1
    for name in run_names():
        assert reference_run(name).name == name


@EACH_FILE
def test_every_recorded_value_has_kind_source_and_unit_or_none(path: Path) -> None:
    sources = tomllib.loads(path.read_text(encoding="utf-8"))["sources"]
    for key, entry in entries(path):
        assert entry["kind"] in set(Kind), key
        assert entry["source"].split()[0].rstrip(";,") in sources, key
        number = isinstance(entry.get("value"), (int, float)) and not isinstance(entry["value"], bool)
        assert ("unit" in entry) == number, key
        assert not number or entry["unit"] in UNITS, key


@EACH_FILE
def test_assumptions_and_conflicts_say_why(path: Path) -> None:
    for key, entry in entries(path):
        if entry["kind"] == Kind.ASSUMED:
            assert len(entry["why"]) > 5, key
            assert len(entry["effect"]) > 3, key
        for reading in entry.get("readings", []):
            assert entry["why"], key
            assert reading["value"] != entry["value"], key
            assert reading["source"].strip(), key


@EACH_FILE
def test_every_source_is_used(path: Path) -> None:
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    texts = [part for _, entry in entries(path) for part in [entry, *entry.get("readings", [])]]
    words = {word.strip("();,") for text in texts for word in text["source"].split()}
    assert set(raw["sources"]) <= words


@pytest.mark.parametrize(
    ("key", "value"),
    {
        "architecture.layers": 70,
        "architecture.hidden": 14336,
        "architecture.heads": 112,
        "architecture.head_dim": 128,
        "architecture.kv_heads": 112,
        "architecture.ffn_hidden": 57344,
        "architecture.vocabulary": 250680,
        "architecture.padded_vocabulary": 250880,
        "architecture.sequence": 2048,
        "architecture.biases": True,
        "architecture.tied_embeddings": True,
        "architecture.embedding_norm": True,
        "architecture.position": "alibi",
        "recipe.global_batch": 2048,
        "layout.micro_batch": 2,
        "recipe.batch_rampup_start": 192,
        "recipe.batch_rampup_increment": 16,
        "recipe.batch_rampup_samples": 9_765_625,
        "recipe.tokens": 366 * 10**9,
        "recipe.precision": Precision.BF16,
        "recipe.beta1": 0.9,
        "recipe.beta2": 0.95,
        "recipe.epsilon": 1e-8,
        "recipe.weight_decay": 0.1,
        "recipe.gradient_clip": 1.0,
        "recipe.learning_rate": 6e-5,
        "recipe.minimum_learning_rate": 6e-6,
        "recipe.warmup": 183_105,
        "recipe.decay": 200_000_000,
        "recipe.init_std": 0.0048,
        "recipe.hidden_dropout": 0.1,
        "recipe.attention_dropout": 0.1,
        "layout.data_parallel": 8,
        "layout.tensor_parallel": 4,
        "layout.pipeline_stages": 12,
        "layout.virtual_stages": 1,
        "layout.schedule": Schedule.ONE_F_ONE_B,
        "layout.zero_stage": 1,
        "layout.sequence_parallel": False,
        "layout.recomputation": "full",
        "layout.accumulation": 128,
        "cluster.accelerators": 384,
        "cluster.accelerators_per_node": 8,
        "cluster.network_interfaces_per_node": 4,
        "cluster.network_interface_bandwidth": 12.5e9,
        "cluster.measured_all_reduce_bandwidth": 5.25e9,
        "reported.parameters": 176_247_271_424,
        "reported.step_seconds": 105.22,
        "reported.hardware_flop_per_second": 149.02e12,
        "reported.samples_per_second": 19.463,
        "reported.tokens_per_second": 39862.2,
        "reported.mfu": 0.358,
        "reported.hfu": 0.478,
        "reported.peak_bytes": 59e9,
        "reported.checkpoint_seconds": 40,
        "reported.accelerator_seconds": 1_082_990 * 3600,
        "reported.duration": 118.24 * 86400,
    }.items(),
)
def test_bloom_is_recorded_as_published(key: str, value: object) -> None:
    section, field = key.split(".")
    assert getattr(getattr(BLOOM, section), field) == value


@pytest.mark.parametrize(
    ("key", "readings"),
    {
        "recipe.tokens": {450 * 10**9, 325 * 10**9},
        "recipe.batch_rampup_start": {16},
        "recipe.hidden_dropout": {0.0},
        "recipe.attention_dropout": {0.0},
        "layout.zero_stage": {0},
        "cluster.measured_all_reduce_bandwidth": {15, 135},
        "reported.step_seconds": {104.70, 106.46, 111.14},
        "reported.hardware_flop_per_second": {149.77, 141.09, 156},
        "reported.peak_bytes": {60},
    }.items(),
)
def test_conflicting_readings_are_kept(key: str, readings: set[float]) -> None:
    assert {reading.value for reading in BLOOM.facts[key].readings} == readings


def test_derived_values_follow_from_the_stated_ones() -> None:
    architecture, recipe, layout, reported = BLOOM.architecture, BLOOM.recipe, BLOOM.layout, BLOOM.reported
    tokens = recipe.global_batch * architecture.sequence
    assert reported.step_seconds is not None
    assert BLOOM.cluster is not None
    assert architecture.heads * architecture.head_dim == architecture.hidden
    assert layout.ranks == BLOOM.cluster.accelerators
    assert layout.data_parallel * layout.micro_batch * (layout.accumulation or 0) == recipe.global_batch
    # printed to one decimal: half a unit of the last place
    assert reported.tokens_per_second == pytest.approx(tokens / reported.step_seconds, abs=0.05)
    # the log prints 105.22 s to 0.005 s and 19.463 to 0.0005 samples/s
    assert reported.samples_per_second == pytest.approx(
        recipe.global_batch / reported.step_seconds, rel=0.005 / 105.22 + 0.0005 / 19.463
    )
    # three decimals
    assert reported.hfu == pytest.approx(149.02 / 312, abs=0.0005)
    assert reported.mfu == pytest.approx(0.75 * 149.02 / 312, abs=0.0005)
    # 0.0048 is printed to two digits
    assert recipe.init_std == pytest.approx(math.sqrt(0.33 / architecture.hidden), abs=0.00005)


TOML = (RUNS / "bloom_176b.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("heads = { value = 112", "heads = { value = 111", "kv_heads does not divide heads = 111; got 112"),
        ("data_parallel = { value = 8", "data_parallel = { value = 16", "= 768 accelerators, but cluster.accelerators"),
        ("accumulation = { value = 128", "accumulation = { value = 64", "1024 samples, but the global batch is 2048"),
        (
            'padded_vocabulary = { value = 250880, unit = "token"',
            "padded_vocabulary = { value = 250880",
            "missing unit",
        ),
        ('sequence = { value = 2048, unit = "token"', 'sequence = { value = 2048, unit = "s"', "is a unit of s"),
        ("[architecture]\nlayers", "[architecture]\nlayer", "unknown key 'architecture.layer'"),
        ("[software]", "[software_]", "unknown key 'software_'"),
        ('source = "slurm (multi-head attention)"', 'source = "blog"', "does not begin with a key of [sources]"),
        ('source = "slurm (multi-head attention)"', 'source = ""', "source is empty"),
        ("layers = { value = 70", "layers = { value = 0", ">= 1"),
        ("layers = { value = 70", "layers = { value = 70.5", "expected an integer"),
        ('position = { value = "alibi"', 'position = { value = "sinus"', "allowed: alibi, learned, rotary"),
        (
            'position = { value = "alibi"',
            'rotary_base = { value = 9, unit = "1", kind = "stated", source = "slurm" }\nposition = { value = "alibi"',
            "architecture.rotary_base: only for rotary positions",
        ),
        (
            "padded_vocabulary = { value = 250880",
            "padded_vocabulary = { value = 250000",
            "at least vocabulary = 250680",
        ),
    ],
)
def test_a_broken_record_is_refused_with_its_key(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert TOML.count(old) >= 1
    path = tmp_path / "broken.toml"
    path.write_text(TOML.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as refusal:
        load(path)
    assert complaint in str(refusal.value)
    assert str(path) in str(refusal.value)


def slopes_of_the_authors(heads: int) -> list[float]:
    """get_slopes of Press et al., the authors' code, written from its recursion."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return slopes_of_the_authors(closest) + slopes_of_the_authors(2 * closest)[0::2][: heads - closest]


@given(st.integers(1, 300))
def test_alibi_slopes_equal_the_authors_recursion(heads: int) -> None:
    # powers of a rounded start: at most 512 roundings of 1.1e-16 each
    assert alibi_slopes(heads) == pytest.approx(slopes_of_the_authors(heads), rel=512 * 2**-53)


def test_alibi_slopes_of_eight_heads_are_the_papers() -> None:
    assert alibi_slopes(8) == [1 / 2**i for i in range(1, 9)]


def test_alibi_slopes_of_bloom_are_those_of_64_heads_and_48_of_128() -> None:
    slopes = alibi_slopes(112)
    assert slopes[:64] == [2 ** (-i / 8) for i in range(1, 65)]
    assert slopes[64:] == [2 ** (-i / 16) for i in range(1, 97, 2)]


def test_a_micro_batch_that_divides_no_batch_is_refused_without_a_useless_hint(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    lines = [line for line in TOML.splitlines() if not line.startswith(("accumulation", "micro_batch = { value = 2,"))]
    text = "\n".join(lines).replace(
        "[layout]", '[layout]\nmicro_batch = { value = 3, unit = "sample", kind = "stated", source = "slurm" }'
    )
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="allowed: a micro-batch that divides it"):
        load(path)
