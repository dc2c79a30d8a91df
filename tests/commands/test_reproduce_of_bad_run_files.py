"""Bad run files are refused by file, key and value, all mistakes at once."""

from __future__ import annotations

import re

from reference_runs.catalog import RUNS, reference_run
from suite.__main__ import main
from tests.support.refusals import LAYERS, RECORDED, broken, without_section

# Text of the recorded run -> what stands in its place, and below it the words of the refusal
BROKEN = """\
layers = { -> layers = = {
    not valid TOML: Invalid value (at line
LAYERS ->
    missing key 'architecture.layers'
title = "BLOOM-176B (BigScience, 2022)" ->
    missing key 'title'
title = "BLOOM-176B (BigScience, 2022)" -> title = 3
    title: expected a text & got 3
RECIPE ->
    recipe.global_batch, recipe.tokens, recipe.precision, & are needed to execute, and the file leaves them out
ARCHITECTURE ->
    missing section [architecture] & allowed: layers, hidden
[software] -> [hardware]
    unknown key 'hardware' & allowed: architecture, cluster
layers = { -> layer = {
    unknown key 'architecture.layer'; did you mean layers? allowed: layers, hidden
value = 70, -> value = 70, units = "1",
    architecture.layers & unknown field `units`
value = 25, unit = "MiB" -> value = 25, unit = "token"
    layout.bucket_bytes: unit 'token' is a unit of token & allowed: byte, kB
value = 100, unit = "Gbit/s" -> value = 100, unit = "Gbps"
    cluster.network_interface_bandwidth: unit 'Gbps' is an unknown unit & allowed: byte/s & Gbit/s
value = 70, unit = "1" -> value = 70
    architecture.layers: missing unit & allowed: 1
value = "alibi" -> value = "alibi", unit = "1"
    architecture.position: has no unit & '1'
value = 70, -> value = "70",
    architecture.layers: expected a number & got '70'
value = 70, -> value = true,
    architecture.layers: expected a number & got True
value = 70, -> value = 1979-05-27,
    architecture.layers: value: Expected & got `date`
LAYERS -> layers = 70
    architecture.layers & got 70 & allowed: { value, unit, kind, source }
value = 70, -> value = 70.5,
    architecture.layers: expected an integer & got 70.5
value = "alibi" -> value = 3
    architecture.position & got 3 & allowed: alibi, learned
value = 70, -> value = 0,
    architecture.layers & >= 1 & got 0
value = 6e-5 -> value = inf
    recipe.learning_rate: expected a finite number & got inf
value = 6e-5 -> value = 1e400
    recipe.learning_rate: expected a finite number & got inf
value = 6e-5 -> value = nan
    recipe.learning_rate: expected a finite number & got nan
hidden_dropout = { value = 0.1 -> hidden_dropout = { value = 1.0
    recipe.hidden_dropout & < 1.0 & got 1.0
value = "alibi" -> value = "rope"
    position & got 'rope' & allowed: alibi, learned
kind = "stated" -> kind = "rumoured"
    layers: kind: Invalid enum value 'rumoured' & derived
, source = "slurm" } ->  }
    architecture.layers & missing required field `source`
source = "slurm" } -> source = "" }
    architecture.layers: source is empty
source = "slurm" } -> source = "hearsay" }
    [sources] & got 'hearsay' & bandwidth, calc
kind = "stated", source = "slurm" } -> kind = "assumed", source = "slurm" }
    architecture.layers: an assumed value needs `why` and `effect`
LAYERS -> layers = { kind = "not published", source = "slurm" }
    architecture.layers is needed, but recorded as not published
accelerators = { value = 384 -> accelerators = { value = 400
    layout: 8 (dp) * 4 (tp) * 12 (pp) = 384 accelerators, but cluster.accelerators = 400
norm_epsilon = { -> shared_norm = { value = true, kind = "stated", source = "slurm" }\\nnorm_epsilon = {
    architecture.shared_norm needs residual parallel; got true
warmup = { value = 183105 -> warmup = { value = 200000001
    recipe.warmup is longer than recipe.decay; got 200000001 samples, allowed: at most 200000000 samples
kv_heads = { value = 112 -> kv_heads = { value = 9
    kv_heads & got 9 & heads = 112
objective = { -> gmask_share = { value = 0.7, unit = "1", kind = "stated", source = "slurm" }\\nobjective = {
    recipe.gmask_share: only for blank infilling
objective = { value = "causal-lm" -> objective = { value = "blank-infilling"
    recipe.gmask_share, recipe.mask_share, & , recipe.instruction_share: missing, needed with blank infilling
kv_heads = { value = 112 -> kv_heads = { value = 14
    layout.tensor_parallel does not divide architecture.kv_heads = 14; got 4
ffn_hidden = { value = 57344 -> ffn_hidden = { value = 57346
    layout.tensor_parallel does not divide architecture.ffn_hidden = 57346; got 4
{ value = 250880 -> { value = 250882
    layout.tensor_parallel does not divide architecture.padded_vocabulary = 250882; got 4
layers = { value = 70 -> layers = { value = 11
    more pipeline stages than layers; got 12, allowed: at most architecture.layers = 11
{ value = 250880 -> { value = 250
    padded_vocabulary & got 250 & at least vocabulary = 250680
global_batch = { value = 2048 -> global_batch = { value = 2047
    8 (dp) * 2 (micro-batch) * 128 (accumulate) = 2048 samples, but the global batch is 2047
tensor_parallel = { value = 4 -> tensor_parallel = { value = 5
    layout: 8 (dp) * 5 (tp) * 12 (pp) = 480 accelerators, but cluster.accelerators = 384
"""
WHOLE = {"LAYERS": LAYERS, "RECIPE": without_section("recipe"), "ARCHITECTURE": without_section("architecture")}


def test_a_broken_run_file_is_refused_by_file_key_and_value(tmp_path, not_refused):
    lines, table = BROKEN.splitlines(), []
    for change, words in zip(lines[::2], lines[1::2], strict=True):
        old, _, new = change.partition(" ->")
        directory = tmp_path / str(len(table))
        directory.mkdir()
        path = broken(directory, WHOLE.get(old, old), new.strip().replace("\\n", "\n"))
        table.append((str(path), (f"error: {path}: ", *words.strip().split(" & "))))
    assert not_refused("reproduce", table, "--device cpu --results RESULTS") == []


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
        "architecture.position: unknown value; got 'rope'",
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


def test_a_whole_number_may_be_written_with_an_exponent(tmp_path):
    (entry,) = re.findall(r"^tokens = \{ value = ([\d_]+)", RECORDED, re.MULTILINE)
    for written, tokens in (("366e9", 366_000_000_000), ("2.5e9", 2_500_000_000)):
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


def test_fp16_without_a_recorded_loss_scale_is_refused(reasons):
    line, *_ = reasons(str(RUNS / "gpt3_175b.toml"))
    assert line.startswith("runs/gpt3_175b.toml: fp16 is executed with a dynamic loss scale, and the file does not")


def test_a_top_query_layer_apart_from_the_head_is_refused(tmp_path, reproduce_refused):
    text = (RUNS / "codegeex_13b.toml").read_text(encoding="utf-8")
    placed = 'stage_assignment = { value = "layers-and-tables", kind = "stated", source = "pangu" }'
    text = text.replace("[layout]\n", f"[layout]\n{placed}\n")
    path = tmp_path / "my_run.toml"
    path.write_text(text, encoding="utf-8")
    line = reproduce_refused(str(path), "--layout", "pp40,zero1,recompute-none")
    assert "got a top-query layer apart from the head" in line


NOT_EXECUTED = [
    (
        "glm_130b",
        'residual = { value = "sequential"',
        'residual = { value = "parallel"',
        "deep-norm in that block; got parallel architecture.residual, top_query_layer False, "
        "allowed: sequential, False",
    ),
    (
        "codegeex_13b",
        'position = { value = "learned"',
        'position = { value = "alibi"',
        "a top-query layer with those positions; got alibi, allowed: learned",
    ),
    (
        "glm_130b",
        'mask = { value = "prefix"',
        'mask = { value = "causal"',
        "that recipe.objective with that mask; got blank-infilling with causal, "
        "allowed: causal-lm with causal, blank-infilling with prefix",
    ),
    (
        "gpt2_124m",
        'mask = { value = "causal"',
        'mask = { value = "prefix"',
        "that recipe.objective with that mask; got causal-lm with prefix, "
        "allowed: causal-lm with causal, blank-infilling with prefix",
    ),
    (
        "glm_130b",
        "vocabulary = { value = 150000",
        "vocabulary = { value = 150525",
        "blank infilling without rows for its special tokens; got 150528 architecture.padded_vocabulary, "
        "allowed: at least 150529",
    ),
    (
        "deepseek_v3",
        'norm = { value = "pre-rms-norm"',
        'norm = { value = "deep-norm"',
        "latent attention with deep-norm; got 512 architecture.key_value_rank, allowed: another norm",
    ),
    (
        "gpt2_124m",
        "optimizer = {",
        'product_format = { value = "nvfp4", kind = "stated", source = "llmc" }\noptimizer = {',
        "products in that format; got nvfp4 recipe.product_format, allowed: none, fp8-current",
    ),
    (
        "mixtral_8x7b",
        "optimizer = {",
        'product_format = { value = "fp8-current", kind = "stated", source = "paper" }\noptimizer = {',
        "experts with products in a format of their own; got fp8-current recipe.product_format, allowed: none",
    ),
    (
        "glm_130b",
        "packed_samples = { value = 4",
        "packed_samples = { value = 513",
        "blank infilling in so short windows; got 2048 architecture.sequence, allowed: at least 2052",
    ),
]


def test_what_is_described_but_not_executed_is_refused(tmp_path, reasons):
    path, found = tmp_path / "my_run.toml", []
    for run, old, new, _ in NOT_EXECUTED:
        text = (RUNS / f"{run}.toml").read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        found.append(reasons(str(path), "--layout", "dp1,tp1,pp1,zero0")[0])
    assert found == [f"{path}: this version does not execute {rest}" for *_, rest in NOT_EXECUTED]


def test_a_run_file_that_cannot_be_read_is_refused(tmp_path, reproduce_refused):
    path = tmp_path / "my_run.toml"
    assert reproduce_refused(str(path)) == f"{path}: cannot read the run file: No such file or directory"
    path.mkdir()
    assert reproduce_refused(str(path)) == f"{path}: cannot read the run file: Is a directory"
    path.rmdir()
    path.write_bytes(b"\xff\xfe")
    assert reproduce_refused(str(path)).startswith(f"{path}: not valid TOML: 'utf-8' codec can't decode byte 0xff")
