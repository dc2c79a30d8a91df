"""Bad input is one line that says what, where, what was given and what is allowed; exit code 2; nothing is left."""

from __future__ import annotations

import os
import random
import re
import string
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from reference_runs.accelerator import accelerator_names
from reference_runs.catalog import RUNS, miniatures, reference_run, run_names
from suite.__main__ import COMMANDS, main
from suite.machine.devices import cuda_devices
from suite.paths import ROOT
from suite.reproduce.plan import plan
from suite.reproduce.request import Request

RECORDED = (RUNS / "bloom_176b.toml").read_text(encoding="utf-8")
LAYERS = 'layers = { value = 70, unit = "1", kind = "stated", source = "slurm" }'
NOBODY = 65534
LAYOUT_NOT_EXECUTED = (
    "this version does not execute that layout; got {}, allowed: dpN, epN, "
    "tpN, sp with tpN, cpN, ppN, interleaveN, gpipe, "
    "1f1b, zero-bubble, zbv, dualpipev, "
    "pipedream/pipedream-vertical-sync/pipedream-2bw with ppN and dpN or replicasN-N-… (zero0) alone, "
    "zero0/1, layersN-N-…, reduce-scatter, all-reduce, zero2/3 without ppN, shardN, reshard, noreshard, "
    "offload with zero2/3, "
    "recompute-none/selective/full, everyN, fused with a plain causal mask, microN, accumulateN, bucketN"
)


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """A function that runs a command, expects its refusal, and returns the one line on stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments):
        assert main([*arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        return only_line(err)

    return run


@pytest.fixture
def reproduce_refused(refused, tmp_path):
    """As `refused`, for `reproduce` on the CPU: neither a record nor its directory may appear."""

    def run(name, *arguments):
        device = () if "--device" in arguments else ("--device", "cpu")
        line = refused("reproduce", name, *device, *arguments, "--results", str(tmp_path / "results"))
        assert not (tmp_path / "results").exists()
        return line

    return run


@pytest.fixture
def reasons(capsys, tmp_path, monkeypatch):
    """A function that runs `reproduce` on the CPU, expects its refusal, and returns the line of each reason."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(name, *arguments):
        assert main(["reproduce", name, "--device", "cpu", *arguments, "--results", str(tmp_path / "results")]) == 2
        assert not (tmp_path / "results").exists()
        out, err = capsys.readouterr()
        assert out == ""
        return [only_line(f"{line}\n") for line in err.splitlines()]

    return run


@pytest.fixture
def open_directory(tmp_path):
    """A directory that every user may enter; tmp_path is closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def unprivileged():
    """A context in which permissions bind: root becomes nobody, and root again afterwards."""
    if os.getuid() == 0:
        os.setresuid(NOBODY, NOBODY, 0)
        yield
        os.setresuid(0, 0, 0)
    else:
        yield


def only_line(err):
    assert err.startswith("error: "), err
    assert err.count("\n") == 1, err
    assert err.endswith("\n")
    assert "Traceback" not in err
    return err.removeprefix("error: ").rstrip("\n")


def broken(tmp_path, old, new):
    """The recorded run with one text replaced, as a file of the user."""
    assert old in RECORDED
    path = tmp_path / "my_run.toml"
    path.write_text(RECORDED.replace(old, new, 1), encoding="utf-8")
    return path


def without_section(name):
    """The text of one section of the recorded run, to be taken out."""
    start = RECORDED.index(f"[{name}]")
    return RECORDED[start : RECORDED.index("\n[", start) + 1]


def test_an_unknown_run_is_refused_with_the_names_that_exist(reproduce_refused):
    line = reproduce_refused("nonsense")
    others = "on a GPU a recorded run (see `runs`), or a run file ending in .toml"
    assert line == f"unknown run; got 'nonsense', allowed: {', '.join(miniatures())}, {others}"


def test_an_unknown_run_is_refused_by_predict(refused):
    line = refused("predict", "nonsense")
    names = ", ".join([*run_names(), *miniatures()])
    assert line == f"unknown run; got 'nonsense', allowed: {names}, or a file ending in .toml"


def test_an_unknown_name_is_refused_by_show(refused):
    line = refused("show", "nonsense")
    names = ", ".join([*run_names(), *miniatures(), *accelerator_names()])
    assert line == f"unknown name; got 'nonsense', allowed: {names}, or a run file ending in .toml"


BROKEN = {
    "syntax": ("layers = {", "layers = = {", ["not valid TOML: Invalid value (at line "]),
    "missing-key": (LAYERS, "", ["missing key 'architecture.layers'"]),
    "missing-title": ('title = "BLOOM-176B (BigScience, 2022)"', "", ["missing key 'title'"]),
    "number-for-title": ('title = "BLOOM-176B (BigScience, 2022)"', "title = 3", ["title: expected a text", "got 3"]),
    "missing-section": (
        without_section("recipe"),
        "",
        [
            "recipe.global_batch, recipe.tokens, recipe.precision, ",
            "are needed to execute, and the file leaves them out",
        ],
    ),
    "missing-architecture": (
        without_section("architecture"),
        "",
        ["missing section [architecture]", "allowed: layers, hidden"],
    ),
    "unknown-section": ("[software]", "[hardware]", ["unknown key 'hardware'", "allowed: architecture, cluster"]),
    "unknown-key": (
        "layers = {",
        "layer = {",
        ["unknown key 'architecture.layer'; did you mean layers? allowed: layers, hidden"],
    ),
    "unknown-entry": ("value = 70,", 'value = 70, units = "1",', ["architecture.layers", "unknown field `units`"]),
    "wrong-unit": (
        'value = 25, unit = "MiB"',
        'value = 25, unit = "token"',
        ["layout.bucket_bytes: unit 'token' is a unit of token", "allowed: byte, kB"],
    ),
    "unknown-unit": (
        'value = 100, unit = "Gbit/s"',
        'value = 100, unit = "Gbps"',
        ["cluster.network_interface_bandwidth: unit 'Gbps' is an unknown unit", "allowed: byte/s", "Gbit/s"],
    ),
    "missing-unit": ('value = 70, unit = "1"', "value = 70", ["architecture.layers: missing unit", "allowed: 1"]),
    "unit-of-text": ('value = "alibi"', 'value = "alibi", unit = "1"', ["architecture.position: has no unit", "'1'"]),
    "text-for-number": ("value = 70,", 'value = "70",', ["architecture.layers: expected a number", "got '70'"]),
    "claim-for-number": ("value = 70,", "value = true,", ["architecture.layers: expected a number", "got True"]),
    "date-for-number": ("value = 70,", "value = 1979-05-27,", ["architecture.layers: value: Expected", "got `date`"]),
    "bare-number": (LAYERS, "layers = 70", ["architecture.layers", "got 70", "allowed: { value, unit, kind, source }"]),
    "float-for-int": ("value = 70,", "value = 70.5,", ["architecture.layers: expected an integer", "got 70.5"]),
    "number-for-choice": (
        'value = "alibi"',
        "value = 3",
        ["architecture.position", "got 3", "allowed: alibi, learned"],
    ),
    "zero-layers": ("value = 70,", "value = 0,", ["architecture.layers", ">= 1", "got 0"]),
    "infinite": ("value = 6e-5", "value = inf", ["recipe.learning_rate: expected a finite number", "got inf"]),
    "beyond-float": ("value = 6e-5", "value = 1e400", ["recipe.learning_rate: expected a finite number", "got inf"]),
    "not-a-number": ("value = 6e-5", "value = nan", ["recipe.learning_rate: expected a finite number", "got nan"]),
    "certain-dropout": (
        "hidden_dropout = { value = 0.1",
        "hidden_dropout = { value = 1.0",
        ["recipe.hidden_dropout", "< 1.0", "got 1.0"],
    ),
    "unknown-choice": ('value = "alibi"', 'value = "rope"', ["position", "got 'rope'", "allowed: alibi, learned"]),
    "unknown-kind": (
        'kind = "stated"',
        'kind = "rumoured"',
        ["layers: kind: Invalid enum value 'rumoured'", "derived"],
    ),
    "missing-source": (', source = "slurm" }', " }", ["architecture.layers", "missing required field `source`"]),
    "empty-source": ('source = "slurm" }', 'source = "" }', ["architecture.layers: source is empty"]),
    "unknown-source": ('source = "slurm" }', 'source = "hearsay" }', ["[sources]", "got 'hearsay'", "bandwidth, calc"]),
    "assumed-without-reason": (
        'kind = "stated", source = "slurm" }',
        'kind = "assumed", source = "slurm" }',
        ["architecture.layers: an assumed value needs `why` and `effect`"],
    ),
    "needed-but-not-published": (
        LAYERS,
        'layers = { kind = "not published", source = "slurm" }',
        ["architecture.layers is needed, but recorded as not published"],
    ),
    "layout-and-cluster": (
        "accelerators = { value = 384",
        "accelerators = { value = 400",
        ["layout: 8 (dp) * 4 (tp) * 12 (pp) = 384 accelerators, but cluster.accelerators = 400"],
    ),
    "one-norm-for-two-branches-in-sequence": (
        "norm_epsilon = {",
        'shared_norm = { value = true, kind = "stated", source = "slurm" }\nnorm_epsilon = {',
        ["architecture.shared_norm needs residual parallel; got true"],
    ),
    "warm-up-and-decay": (
        "warmup = { value = 183105",
        "warmup = { value = 200000001",
        ["recipe.warmup is longer than recipe.decay; got 200000001 samples, allowed: at most 200000000 samples"],
    ),
    "grouped-queries": ("kv_heads = { value = 112", "kv_heads = { value = 9", ["kv_heads", "got 9", "heads = 112"]),
    "samples-of-another-objective": (
        "objective = {",
        'gmask_share = { value = 0.7, unit = "1", kind = "stated", source = "slurm" }\nobjective = {',
        ["recipe.gmask_share: only for blank infilling"],
    ),
    "objective-without-its-samples": (
        'objective = { value = "causal-lm"',
        'objective = { value = "blank-infilling"',
        ["recipe.gmask_share, recipe.mask_share, ", ", recipe.instruction_share: missing, needed with blank infilling"],
    ),
    "key-value-heads-and-tensor-parallel": (
        "kv_heads = { value = 112",
        "kv_heads = { value = 14",
        ["layout.tensor_parallel does not divide architecture.kv_heads = 14; got 4"],
    ),
    "feed-forward-and-tensor-parallel": (
        "ffn_hidden = { value = 57344",
        "ffn_hidden = { value = 57346",
        ["layout.tensor_parallel does not divide architecture.ffn_hidden = 57346; got 4"],
    ),
    "vocabulary-and-tensor-parallel": (
        "{ value = 250880",
        "{ value = 250882",
        ["layout.tensor_parallel does not divide architecture.padded_vocabulary = 250882; got 4"],
    ),
    "stages-and-layers": (
        "layers = { value = 70",
        "layers = { value = 11",
        ["more pipeline stages than layers; got 12, allowed: at most architecture.layers = 11"],
    ),
    "padding": ("{ value = 250880", "{ value = 250", ["padded_vocabulary", "got 250", "at least vocabulary = 250680"]),
    "batch-and-accumulation": (
        "global_batch = { value = 2048",
        "global_batch = { value = 2047",
        ["8 (dp) * 2 (micro-batch) * 128 (accumulate) = 2048 samples, but the global batch is 2047"],
    ),
    "heads-and-tensor-parallel": (
        "tensor_parallel = { value = 4",
        "tensor_parallel = { value = 5",
        ["layout: 8 (dp) * 5 (tp) * 12 (pp) = 480 accelerators, but cluster.accelerators = 384"],
    ),
}


@pytest.mark.parametrize(("old", "new", "fragments"), BROKEN.values(), ids=BROKEN)
def test_a_broken_run_file_is_refused_by_file_key_and_value(old, new, fragments, tmp_path, reproduce_refused):
    path = broken(tmp_path, old, new)
    line = reproduce_refused(str(path))
    assert line.startswith(f"{path}: ")
    for fragment in fragments:
        assert fragment in line


def test_all_mistakes_of_a_run_file_are_reported_at_once(tmp_path, capsys):
    path = broken(tmp_path, LAYERS, "layers = 70")
    text = path.read_text(encoding="utf-8")
    for old, new in (
        ('value = "alibi"', 'value = "rope"'),
        ("global_batch = {", "globl_batch = {"),
        ('value = 25, unit = "MiB"', 'value = 25, unit = "1"'),
        ('value = 100, unit = "Gbit/s"', 'value = 100, unit = "Gbps"'),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text, encoding="utf-8")
    assert main(["show", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 5
    assert all(line.startswith(f"error: {path}: ") for line in lines)
    for fragment in (
        "architecture.layers: Expected `object`",
        "architecture.position: Invalid enum value 'rope'",
        "unknown key 'recipe.globl_batch'; did you mean global_batch?",
        "layout.bucket_bytes: unit '1' is a unit of counts and ratios; allowed: byte",
        "cluster.network_interface_bandwidth: unit 'Gbps' is an unknown unit",
    ):
        assert sum(fragment in line for line in lines) == 1, fragment


def test_all_missing_keys_of_a_section_are_one_line(tmp_path, refused):
    path = broken(tmp_path, LAYERS, "")
    text = path.read_text(encoding="utf-8")
    path.write_text("".join(line for line in text.splitlines(True) if not line.startswith("hidden =")))
    assert refused("show", str(path)) == f"{path}: missing keys 'architecture.layers', 'architecture.hidden'"


def test_all_contradictions_of_a_run_file_are_reported_at_once(tmp_path, capsys):
    path = broken(tmp_path, "warmup = { value = 183105", "warmup = { value = 200000001")
    text = path.read_text(encoding="utf-8").replace("accelerators = { value = 384", "accelerators = { value = 400", 1)
    path.write_text(text, encoding="utf-8")
    assert main(["show", str(path)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "recipe.warmup is longer than recipe.decay" in first
    assert "but cluster.accelerators = 400" in second


@pytest.mark.parametrize(("written", "tokens"), [("366e9", 366_000_000_000), ("2.5e9", 2_500_000_000)])
def test_a_whole_number_may_be_written_with_an_exponent(written, tokens, tmp_path):
    (entry,) = re.findall(r"^tokens = \{ value = ([\d_]+)", RECORDED, re.MULTILINE)
    path = broken(tmp_path, f"tokens = {{ value = {entry}", f"tokens = {{ value = {written}")
    recorded = reference_run(str(path)).recipe.tokens
    assert (recorded, type(recorded)) == (tokens, int)


def test_a_batch_that_the_ranks_do_not_divide_is_refused(tmp_path, reproduce_refused):
    text = RECORDED.replace("global_batch = { value = 2048", "global_batch = { value = 2040")
    path = tmp_path / "my_run.toml"
    path.write_text("".join(line for line in text.splitlines(True) if not line.startswith("accumulation")))
    line = reproduce_refused(str(path))
    assert line.startswith(f"{path}: layout: 8 (dp) * 2 (micro-batch) does not divide the global batch of 2040 samples")
    assert "got dp8, allowed: dp 1, 2, 3, 4, 5, 6, 10" in line


def test_an_unbroken_run_is_refused_for_the_layout_that_is_asked_for_alone(tmp_path, reproduce_refused):
    path = broken(tmp_path, "", "")
    assert reproduce_refused(str(path), "--layout", "recompute-from-input") == (
        f"--layout: {LAYOUT_NOT_EXECUTED.format('recompute-from-input')}"
    )


@pytest.mark.parametrize(
    ("run", "word"),
    {
        "opt_175b": "layout; got partitioned checkpoints",
        "glm_130b": "layout; got partitioned checkpoints",
        "codegeex_13b": "layout; got partitioned checkpoints",
    }.items(),
)
def test_a_run_whose_layout_is_described_but_not_executed_is_refused(run, word, reproduce_refused):
    path = RUNS / f"{run}.toml"
    line = reproduce_refused(str(path))
    assert line.startswith(f"runs/{run}.toml: this version does not execute that {word}")


def test_a_recorded_run_is_executed_in_its_own_size_on_gpus_alone(reproduce_refused, monkeypatch, tmp_path):
    line = reproduce_refused("gpt2-124m", "--ranks", "1")
    assert line == "gpt2-124m: a recorded run in its own size; got cpu, allowed: --device cuda, or gpt2-mini"
    monkeypatch.setattr("suite.reproduce.plan.resolved_device", lambda _: ("cuda", 1))
    for name in ("gpt2-124m", "gpt2-1558m"):
        run = reference_run(name)
        planned = plan(Request(name=name, ranks=1, device="cuda", results=tmp_path))
        assert (planned.name, planned.architecture, planned.recipe) == (name, run.architecture, run.recipe)
        assert planned.layout == msgspec.structs.replace(run.layout, data_parallel=1, accumulation=None)
        assert planned.layout.fused_attention
    refusal = reproduce_refused("gpt2-124m", "--device", "cuda")
    assert "more ranks than GPUs; got 8, allowed: at most 1, or with --share-devices" in refusal


@pytest.mark.parametrize(("run", "word"), {"bloom_176b": "ALiBi", "glm_130b": "a prefix mask"}.items())
def test_fused_attention_of_scores_with_a_bias_is_refused(run, word, reproduce_refused):
    line = reproduce_refused(str(RUNS / f"{run}.toml"), "--layout", "dp1,zero0,fused,recompute-none")
    assert line == f"--layout: {LAYOUT_NOT_EXECUTED.format(f'fused attention with {word}')}"


def test_fused_attention_with_dropout_is_refused_on_a_cpu_alone(tmp_path, reproduce_refused, monkeypatch):
    text = (RUNS / "gpt2_124m.toml").read_text(encoding="utf-8")
    path = tmp_path / "my_run.toml"
    path.write_text(text.replace("attention_dropout = { value = 0.0", "attention_dropout = { value = 0.1", 1))
    line = reproduce_refused(str(path), "--ranks", "1")
    assert line == (
        "--ranks: fused attention drops nothing on a CPU; got 0.1 recipe.attention_dropout, "
        "allowed: 0, unfused, or --device cuda"
    )
    monkeypatch.setattr("suite.reproduce.plan.resolved_device", lambda _: ("cuda", 1))
    planned = plan(Request(name=str(path), ranks=1, device="cuda", results=tmp_path))
    assert (planned.layout.fused_attention, planned.recipe.attention_dropout) == (True, 0.1)


def test_fp16_without_a_recorded_loss_scale_is_refused(reasons):
    line, *_ = reasons(str(RUNS / "gpt3_175b.toml"))
    assert line.startswith("runs/gpt3_175b.toml: fp16 is executed with a dynamic loss scale, and the file does not")


def test_all_reasons_against_an_execution_are_reported_at_once(reasons):
    recipe, layout = reasons(str(RUNS / "gpt3_175b.toml"), "--layout", "dp4,tp2,pp2,zero3")
    assert "fp16 is executed with a dynamic loss scale" in recipe
    assert layout == f"--layout: {LAYOUT_NOT_EXECUTED.format('zero3 with pp2 and scatter-gather')}"


def test_a_top_query_layer_apart_from_the_head_is_refused(tmp_path, reproduce_refused):
    text = (RUNS / "codegeex_13b.toml").read_text(encoding="utf-8")
    placed = 'stage_assignment = { value = "layers-and-tables", kind = "stated", source = "pangu" }'
    text = text.replace("[layout]\n", f"[layout]\n{placed}\n")
    path = tmp_path / "my_run.toml"
    path.write_text(text, encoding="utf-8")
    line = reproduce_refused(str(path), "--layout", "pp40,zero1,recompute-none")
    assert "got a top-query layer apart from the head" in line


NOT_EXECUTED = {
    "parallel-deep-norm": (
        "glm_130b",
        'residual = { value = "sequential"',
        'residual = { value = "parallel"',
        "deep-norm in that block; got parallel architecture.residual, top_query_layer False, "
        "allowed: sequential, False",
    ),
    "top-query-without-table": (
        "codegeex_13b",
        'position = { value = "learned"',
        'position = { value = "alibi"',
        "a top-query layer with those positions; got alibi, allowed: learned",
    ),
    "blanks-without-prefix": (
        "glm_130b",
        'mask = { value = "prefix"',
        'mask = { value = "causal"',
        "that recipe.objective with that mask; got blank-infilling with causal, "
        "allowed: causal-lm with causal, blank-infilling with prefix",
    ),
    "prefix-without-blanks": (
        "gpt2_124m",
        'mask = { value = "causal"',
        'mask = { value = "prefix"',
        "that recipe.objective with that mask; got causal-lm with prefix, "
        "allowed: causal-lm with causal, blank-infilling with prefix",
    ),
    "blanks-without-special-tokens": (
        "glm_130b",
        "vocabulary = { value = 150000",
        "vocabulary = { value = 150525",
        "blank infilling without rows for its special tokens; got 150528 architecture.padded_vocabulary, "
        "allowed: at least 150529",
    ),
    "latent-deep-norm": (
        "deepseek_v3",
        'norm = { value = "pre-rms-norm"',
        'norm = { value = "deep-norm"',
        "latent attention with deep-norm; got 512 architecture.key_value_rank, allowed: another norm",
    ),
    "products-in-4-bit": (
        "gpt2_124m",
        "optimizer = {",
        'product_format = { value = "nvfp4", kind = "stated", source = "llmc" }\noptimizer = {',
        "products in that format; got nvfp4 recipe.product_format, allowed: none, fp8-current",
    ),
    "experts-with-products-in-8-bit": (
        "mixtral_8x7b",
        "optimizer = {",
        'product_format = { value = "fp8-current", kind = "stated", source = "paper" }\noptimizer = {',
        "experts with products in a format of their own; got fp8-current recipe.product_format, allowed: none",
    ),
    "blanks-in-short-windows": (
        "glm_130b",
        "packed_samples = { value = 4",
        "packed_samples = { value = 513",
        "blank infilling in so short windows; got 2048 architecture.sequence, allowed: at least 2052",
    ),
}


@pytest.mark.parametrize(("run", "old", "new", "rest"), NOT_EXECUTED.values(), ids=NOT_EXECUTED)
def test_what_is_described_but_not_executed_is_refused(run, old, new, rest, tmp_path, reasons):
    text = (RUNS / f"{run}.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "my_run.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    line, *_ = reasons(str(path), "--layout", "dp1,tp1,pp1,zero0")
    assert line == f"{path}: this version does not execute {rest}"


def test_a_missing_run_file_is_refused(tmp_path, reproduce_refused):
    path = tmp_path / "my_run.toml"
    assert reproduce_refused(str(path)) == f"{path}: cannot read the run file: No such file or directory"
    path.mkdir()
    assert reproduce_refused(str(path)) == f"{path}: cannot read the run file: Is a directory"


def test_a_run_file_that_is_not_utf_8_is_refused(tmp_path, reproduce_refused):
    path = tmp_path / "my_run.toml"
    path.write_bytes(b"\xff\xfe")
    assert reproduce_refused(str(path)).startswith(f"{path}: not valid TOML: 'utf-8' codec can't decode byte 0xff")


OPTIONS = {
    "no-ranks": (["--ranks", "0"], ["--ranks: ", "got 0", "allowed: 1 or more"]),
    "text-for-ranks": (["--ranks", "two"], ["--ranks", "valid int"]),
    "too-few-steps": (["--steps", "1"], ["--steps: too few steps", "got 1", "allowed: 6 or more"]),
    "too-many-steps": (["--steps", str(10**23)], ["--steps: too many steps", "got 1000", "allowed: at most 1000000"]),
    "negative-seed": (["--seed", "-1"], ["--seed: seed out of range", "got -1", "allowed: 0 to 4294967295"]),
    "seed-beyond-64-bits": (["--seed", str(10**23)], ["--seed: seed out of range", "allowed: 0 to 4294967295"]),
    "global-batch-of-no-replicas": (["--global-batch", "3"], ["--global-batch: ", "got 3", "allowed: multiples of "]),
    "no-launches": (["--launches", "0"], ["--launches", "got 0", "allowed: 1 or more"]),
    "layout-without-count": (["--layout", "dpx"], ["--layout: not a layout", "got 'dpx'", "allowed: dpN, tpN"]),
    "layout-empty": (["--layout", ""], ["--layout: not a layout", "got ''", "allowed: dpN, tpN"]),
    "layout-count-0": (["--layout", "dp0"], ["--layout: number out of range", "got 'dp0'", "allowed: dpN"]),
    "layout-zero-4": (["--layout", "dp2,zero4"], ["--layout: number out of range", "got 'zero4'", "zero0/1/2/3"]),
    "layout-twice": (["--layout", "dp2,dp2"], ["--layout: given twice", "got 'dp2'"]),
    "layout-resharding-twice": (["--layout", "dp2,reshard,noreshard"], ["--layout: given twice", "got 'noreshard'"]),
    "layout-kind-without-prefix": (["--layout", "dp2,from-input"], ["--layout: not a layout", "got 'from-input'"]),
    "layout-offload": (["--layout", "dp2,offload"], ["--layout: ", "got offload state with zero1"]),
    "layout-shards-of-no-zero": (
        ["--layout", "dp4,zero1,shard2"],
        ["belongs to zero2 and zero3", "got shard2 with zero1"],
    ),
    "layout-shards-of-no-group": (["--layout", "dp6,zero3,shard4"], ["groups of dp x cp", "got 4", "allowed: 2, 3, 6"]),
    "layout-shards-within-a-sample": (
        ["--layout", "dp2,cp2,zero3,shard3"],
        ["layout.shard_ranks: groups of dp x cp ranks", "got 3", "allowed: 2, 4"],
    ),
    "layout-one-shard": (["--layout", "dp2,zero3,shard1"], ["layout.shard_ranks", "got 1", "allowed: 2"]),
    "ranks-and-layout": (["--ranks", "3", "--layout", "dp2"], ["--layout dp2 is 2 ranks", "got --ranks 3"]),
    "ranks-and-axes": (
        ["--ranks", "4", "--layout", "dp2,tp2,pp2"],
        ["--ranks: --layout dp2,tp2,pp2 is 8 ranks", "got --ranks 4"],
    ),
    "unknown-device": (["--device", "tpu"], ["--device: unknown device", "got 'tpu'", "allowed: auto, cpu, cuda"]),
    "unknown-kernels": (["--kernels", "cuda"], ["--kernels: unknown kernels", "got 'cuda'", "allowed: torch, triton"]),
    "unknown-option": (["--nonsense"], ["No such option", "--nonsense"]),
}


@pytest.mark.parametrize(("options", "fragments"), OPTIONS.values(), ids=OPTIONS)
def test_a_bad_option_is_refused(options, fragments, reproduce_refused):
    line = reproduce_refused("bloom-mini", *options)
    for fragment in fragments:
        assert fragment in line


@pytest.mark.parametrize(
    ("layout", "word"),
    {
        "cp2,fused": "fused attention with ALiBi",
        "sp": "sp with tp1",
        "dp2,sp": "sp with tp1",
        "pp2,zero2": "zero2 with pp2",
        "dp2,pp2,zero3": "zero3 with pp2",
        "recompute-from-input": "recompute-from-input",
    }.items(),
)
def test_a_layout_that_is_described_but_not_executed_is_refused_by_its_word(layout, word, reproduce_refused):
    line = reproduce_refused("bloom-mini", "--layout", layout)
    assert line == f"--layout: {LAYOUT_NOT_EXECUTED.format(word)}"


@pytest.mark.parametrize(
    ("run", "layout", "words"),
    [
        ("bloom-mini", "pp2,zero-bubble,recompute-full", "recompute-full"),
        ("mixtral-mini", "pp2,zero-bubble", "experts"),
        ("gpt2-mini", "dp2,pp2,zero-bubble,zero1", "2 ranks with the same weights and no zero1,reduce-scatter"),
        ("gpt2-mini", "pp2,zbv,recompute-full", "recompute-full"),
        ("gpt2-mini", "dp2,pp2,dualpipev,zero1,micro1", "2 ranks with the same weights and no zero1,reduce-scatter"),
    ],
)
def test_what_a_backward_pass_in_halves_computes_twice_or_leaves_out_is_refused(run, layout, words, reproduce_refused):
    (schedule,) = {"zero-bubble", "zbv", "dualpipev"} & set(layout.split(","))
    line = reproduce_refused(run, "--layout", layout)
    assert line == f"--layout: {LAYOUT_NOT_EXECUTED.format(f'{schedule} with {words}')}"


@pytest.mark.parametrize(
    ("run", "layout", "words"),
    [
        ("gpt2-mini", "dp2,pp2,pipedream,zero1", "dp2 and zero1"),
        ("gpt2-mini", "tp2,pp2,pipedream-2bw", "tp2"),
        ("gpt2-mini", "cp2,pp2,pipedream", "cp2"),
        ("qwen3-moe-mini", "pp2,pipedream", "experts"),
        ("gpt-neox-mini", "pp2,pipedream", "the loss scale of fp16"),
        ("bloom-mini", "cp2,pp2,pipedream-vertical-sync", "cp2"),
        ("gpt2-mini", "replicas2-1,pipedream,zero1", "replicas2-1 and zero1"),
        ("gpt2-mini", "replicas2-1,tp2,pipedream", "tp2"),
    ],
)
def test_what_does_not_go_without_flush_is_refused(run, layout, words, reproduce_refused):
    line = reproduce_refused(run, "--layout", layout)
    (schedule,) = [word for word in layout.split(",") if word.startswith("pipedream")]
    assert line == f"--layout: {LAYOUT_NOT_EXECUTED.format(f'{schedule} with {words}')}"


@pytest.mark.parametrize(
    ("layout", "line"),
    [
        ("replicas2-1,pp3,pipedream", "replicas2-1: replicas of 2 stages; got pp3"),
        ("replicas2-0,pipedream", "replicas of a stage; got replicas2-0, allowed: 1 or more"),
        (
            "dp2,replicas2-1,pipedream",
            "replicas of each stage, and of all; got replicas2-1 with dp2, allowed: one of both",
        ),
        (
            "replicas2-1,1f1b",
            "layout: stages with different numbers of replicas need a schedule without flush; "
            "got replicas2-1 with 1f1b, allowed: pipedream, pipedream-vertical-sync, pipedream-2bw",
        ),
        (
            "replicas2-1,pipedream,accumulate4",
            "layout: ranks of such stages have different numbers of micro-batches; "
            "got replicas2-1 with accumulate4, allowed: --global-batch",
        ),
    ],
)
def test_replicas_of_each_stage_that_go_with_no_other_word_are_refused(layout, line, reproduce_refused):
    assert reproduce_refused("gpt2-mini", "--layout", layout) == f"--layout: {line}"


def test_a_batch_that_replicas_of_all_stages_do_not_divide_is_refused(reproduce_refused):
    line = reproduce_refused("gpt2-mini", "--layout", "replicas2-3,pipedream,micro2", "--global-batch", "8")
    assert (
        line == "--global-batch: global batch: no multiple of replicas * micro_batch; got 8, allowed: multiples of 12"
    )


def test_kernels_that_find_all_gradients_at_once_are_refused_with_halves(reproduce_refused):
    line = reproduce_refused("gpt2-mini", "--layout", "pp2,zero-bubble", "--kernels", "triton")
    assert "gradients of inputs without those of weights (zero-bubble)" in line


@pytest.mark.parametrize(
    ("run", "word"), [("glm-mini", "cp2 with a prefix mask"), ("codegeex-mini", "cp2 with a top-query layer")]
)
def test_sequences_that_ranks_cannot_share_out_are_refused_by_name(run, word, reproduce_refused):
    assert reproduce_refused(run, "--layout", "cp2") == f"--layout: {LAYOUT_NOT_EXECUTED.format(word)}"


def test_no_triton_kernel_computes_a_part_of_a_sequence(reproduce_refused):
    line = reproduce_refused("gpt2-mini", "--layout", "cp2", "--kernels", "triton")
    assert line == (
        "--kernels: no Triton kernel computes this; got parts of a sequence (context parallelism), allowed: torch"
    )


IMPOSSIBLE = {
    "heads": ("bloom-mini", "tp4", "layout.tensor_parallel does not divide architecture.heads = 14; got 4"),
    "vocabulary": (
        "gpt-neox-mini",
        "tp16",
        "layout.tensor_parallel does not divide architecture.padded_vocabulary = 1576; got 16",
    ),
    "more-stages-than-layers": (
        "bloom-mini",
        "pp6",
        "layout: more pipeline stages than layers; got 6, allowed: at most architecture.layers = 5",
    ),
    "more-virtual-stages-than-layers": (
        "bloom-mini",
        "pp2,interleave4",
        "layout: more pipeline stages than layers; got 8, "
        "allowed: at most architecture.layers = 5, and a chunk for each table",
    ),
    "interleaved-micro-batches": (
        "gpt2-mini",
        "dp4,pp2,interleave2,accumulate3",
        "layout: interleaving needs a multiple of 2 (pp) micro-batches; got 3",
    ),
    "interleaved-without-stages": (
        "bloom-mini",
        "interleave2",
        "layout: interleaving needs pipeline stages and the schedule 1f1b or zero-bubble; "
        "got interleave2 with pp1,1f1b",
    ),
    "v-of-one-chunk": (
        "gpt2-mini",
        "pp2,zbv,interleave1",
        "layout: zbv has two chunks a stage; got interleave1, allowed: interleave2",
    ),
    "v-of-few-micro-batches": (
        "gpt2-mini",
        "pp2,dualpipev,accumulate3",
        "layout: dualpipev needs as many micro-batches as chunks, 4; got 3",
    ),
    "interleaved-gpipe": (
        "gpt2-mini",
        "pp2,gpipe,interleave2",
        "layout: interleaving needs pipeline stages and the schedule 1f1b or zero-bubble; "
        "got interleave2 with pp2,gpipe",
    ),
    "groups-that-are-not-recomputed": (
        "bloom-mini",
        "every2,recompute-selective",
        "layout.checkpoint_layers belongs to recompute-full; got every2 with recompute-selective",
    ),
}


@pytest.mark.parametrize(("run", "layout", "reason"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_layout_that_the_model_cannot_be_divided_by_is_refused(run, layout, reason, reproduce_refused):
    assert reproduce_refused(run, "--layout", layout) == f"--layout: {reason}"


def test_cuda_without_a_cuda_device_is_refused(reproduce_refused):
    if cuda_devices():
        pytest.skip("this machine has a CUDA device")
    line = reproduce_refused("bloom-mini", "--device", "cuda")
    assert line == "--device: no CUDA device here; got cuda, allowed: cpu, auto"


CORPORA = {
    "empty-file": (b"", ["the corpus is empty", "got 0 bytes", "allowed: UTF-8 text"]),
    "tiny-file": (b"hello world", ["too small for a vocabulary of 3917 tokens", "got 11 bytes", "15668 bytes"]),
    "latin-1": (b"caf\xe9 " * 10_000, ["not UTF-8 text", "corpus.txt", "allowed: UTF-8 text files"]),
    "one-word": (b"word " * 10_000, ["too few distinct words for a vocabulary of 3917 tokens", "more varied text"]),
}


@pytest.mark.parametrize(("data", "fragments"), CORPORA.values(), ids=CORPORA)
def test_a_corpus_that_cannot_be_trained_on_is_refused(data, fragments, tmp_path, reproduce_refused):
    path = tmp_path / "corpus.txt"
    path.write_bytes(data)
    line = reproduce_refused("bloom-mini", "--corpus", str(path))
    assert line.startswith("--corpus: ")
    for fragment in fragments:
        assert fragment in line
    assert not list(tmp_path.glob("cache/*/*"))


def test_a_corpus_smaller_than_one_global_batch_is_refused(tmp_path, reproduce_refused):
    letters = random.Random(1)
    words = ["".join(letters.choices(string.ascii_lowercase, k=20)) for _ in range(300)]  # most become one token
    path = tmp_path / "corpus.txt"
    path.write_text(" ".join(words * 4), encoding="utf-8")
    line = reproduce_refused("bloom-mini", "--corpus", str(path))
    assert line.startswith("--corpus: the corpus is smaller than one global batch; got ")
    assert line.endswith(f" tokens, allowed: at least {24 * 64 + 1} tokens")


def test_a_missing_corpus_is_refused(tmp_path, reproduce_refused):
    path = tmp_path / "missing"
    line = reproduce_refused("bloom-mini", "--corpus", str(path))
    assert line == f"--corpus: cannot read the corpus: No such file or directory; got {path}"


def test_an_empty_corpus_directory_is_refused(tmp_path, reproduce_refused):
    path = tmp_path / "corpus"
    path.mkdir()
    line = reproduce_refused("bloom-mini", "--corpus", str(path))
    assert line == f"--corpus: the directory holds no file; got {path}, allowed: UTF-8 text files"


@pytest.mark.parametrize("place", ["file", "directory", "subdirectory", "below-directory"])
def test_an_unreadable_corpus_is_refused_and_no_part_left_out(place, request, open_directory, refused):
    corpus = open_directory / "corpus"
    closed = corpus / "closed"
    closed.mkdir(parents=True)
    file = corpus / "text.txt"
    file.write_text("text " * 10_000, encoding="utf-8")
    asked, shut = {
        "file": (file, file),
        "directory": (corpus, corpus),
        "subdirectory": (corpus, closed),
        "below-directory": (closed / "text.txt", closed),
    }[place]
    shut.chmod(0)
    request.getfixturevalue("unprivileged")
    results = open_directory / "results"
    line = refused("reproduce", "bloom-mini", "--device", "cpu", "--corpus", str(asked), "--results", str(results))
    assert not results.exists()
    assert line.startswith("--corpus: cannot read the ")
    assert "Permission denied; got " in line


def test_a_results_directory_below_a_file_is_refused(tmp_path, refused):
    file = tmp_path / "file"
    file.write_text("kept", encoding="utf-8")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(" ".join(map(str, range(6000))), encoding="utf-8")
    options = ("--device", "cpu", "--corpus", str(corpus), "--results", str(file / "results"))
    line = refused("reproduce", "bloom-mini", *options)
    assert line == (
        f"--results: cannot write to the results directory: Not a directory; got {file / 'results'}, "
        "allowed: a writable directory"
    )
    assert file.read_text(encoding="utf-8") == "kept"


def test_an_unknown_command_is_refused_with_the_commands_that_exist(refused):
    line = refused("nonsense")
    assert line == f"unknown command; got 'nonsense', allowed: {', '.join(COMMANDS)}"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("bloom-mini",), "no ladder for this run; got 'bloom-mini', allowed: gpt2-mini, gpt2-124m, "),
        (("gpt2-124m",), "--device: gpt2-124m needs a GPU; got cpu, allowed: cuda, or gpt2-mini"),
        (("gpt2-mini", "--rungs", "nonsense"), "--rungs: unknown rung; got 'nonsense', allowed: memory-baseline, "),
        (("gpt2-mini", "--from", "a,b"), "--from: one rung to start from; got 'a,b'"),
        (("gpt2-mini", "--track", "up"), "--track: unknown track; got 'up', allowed: memory, speed"),
        (("gpt2-mini", "--track", "memory", "--rungs", "compile"), "no rung is left; got --rungs, --track and --from"),
        (("gpt2-mini", "--ablate", "compile", "--rungs", "bf16"), "--ablate: an ablated rung is not run; got compile"),
        (("gpt2-mini", "--ablate", "speed-baseline"), "--ablate: a baseline has nothing to leave out; got speed"),
        (("gpt2-mini", "--repeat", "0"), "--repeat: launches; got 0, allowed: 1 or more"),
        (("gpt2-mini", "--traces", "/nowhere"), "--traces: no such directory; got /nowhere, allowed: "),
    ],
)
def test_a_ladder_that_cannot_run_is_refused_before_anything_is_written(refused, tmp_path, arguments, line):
    results = tmp_path / "results"
    assert refused("ladder", *arguments, "--device", "cpu", "--results", str(results)).startswith(line)
    assert not results.exists()


def test_a_missing_argument_is_refused(refused):
    assert "Missing argument" in refused("predict")


def test_a_refusal_reaches_the_shell_as_one_line_and_exit_code_2(tmp_path):
    path = broken(tmp_path, 'value = "alibi"', 'value = "rope"')
    command = [sys.executable, "-m", "suite", "reproduce", str(path), "--results", str(tmp_path / "results")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "got 'rope', allowed: alibi, learned" in only_line(done.stderr)
    assert not (tmp_path / "results").exists()
