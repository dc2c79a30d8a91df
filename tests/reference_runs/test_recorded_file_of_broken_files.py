"""Files of facts with one mistake are refused in a line that names the file and the key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reference_runs.accelerator import ACCELERATORS, accelerator
from reference_runs.catalog import RUNS, load
from reference_runs.errors import InputError
from reference_runs.machine_model import FIT_SCORES, MACHINE_MODEL, fit_scores, machine_model
from reference_runs.published_tables import TABLES, load_tables
from reference_runs.stack import STACKS, stacks

A100, BLOOM = ACCELERATORS / "a100_sxm_80gb.toml", RUNS / "bloom_176b.toml"
TEXT = A100.read_text(encoding="utf-8")
PEAK_LINES = TEXT[TEXT.index("[peak_flop") : TEXT.index("[board]")]
Loader = Callable[[Path], object]


def accelerator_at(path: Path) -> object:
    return accelerator(str(path))


Case = tuple[str, str, str]  # a text of the file, another in its place, and what is said of it

IN_MACHINE_MODEL: list[Case] = [
    ("[parameters.kernel_seconds]", "[parameters.kernel_seconds", "not valid TOML"),
    ('title = "Machine', 'titles = "Machine', "titles"),
    ("[families.ampere]\n", '[families.ampere]\ncolour = "green"\n', "colour"),
    ("flash-attention-1 = 0.3", "flash-attention-9 = 0.3", "flash-attention-9"),
    ("least = 1e-07", "at_least = 1e-07", "at_least"),
    ("spread = 1.05", "spread = 0.5", ">= 1"),
    ("least = 1e-07", 'least = "small"', "Expected `float`, got `str`"),
]
IN_FIT_SCORES: list[Case] = [
    ("[tables.real_runs]", "[tables.real_runs", "not valid TOML"),
    ("free_parameters", "parameters", "unknown"),
    ("size_left_out", "sizes_left_out", "sizes_left_out"),
    ("free_parameters = ", "free_parameters = 0.", "Expected `int`, got `float`"),
]
FLOORS = "[[floors]]\n"
IN_STACKS: list[Case] = [
    ("[stacks.generic]", "[stacks.general]", "stacks.generic is missing"),
    ('title = "A framework that is not listed"', "title = 7", "stacks.generic.title: expected a text; got 7"),
    ('title = "A framework that is not listed"', "", "stacks.generic.title: expected a text; got None"),
    ('"choice", why = "between fused and not', '"rumour", why = "between fused and not', "rumour"),
    ("loss_share = { value = 0.7", "loss_share = { value = 1.7", "stacks.generic.loss_share"),
    ("loss_share = { value = 0.7", "loss_shares = { value = 0.7", "loss_shares"),
    (
        'layer_kernels = { value = 20, unit = "1", kind = "assumed", source = "choice"',
        'layer_kernels = { value = 0, unit = "1", kind = "assumed", source = "choice"',
        "stacks.generic.layer_kernels",
    ),
    ("[sources]", "[sources", "not valid TOML"),
    ("[sources]", "[sauces]", "sauces"),
    ('like = "megatron-lm-2022"', 'like = "megatron-lm-2020"', "stacks.gpt-neox.like; got 'megatron-lm-2020'"),
    ('like = "megatron-lm-2022"', 'like = "gpt-neox"', "stacks.gpt-neox.like: that stack is like this one"),
    ('newer = "', 'newer = "no-', ".newer; got 'no-"),
    ('with_stages = "', 'with_stages = "no-', ".with_stages; got 'no-"),
    ('split = "', 'split = "no-', ".split; got 'no-"),
]
FIRST_FLOOR = '[[floors]]\nquantity = "bf16'
IN_A100: list[Case] = [
    (
        "title = ",
        "titel = ",
        "unknown key 'titel'; did you mean title? allowed: aliases, board, floors, flop_per_cycle, no_floor, "
        "peak_flop_per_second, sources, title",
    ),
    ("title = ", "# ", "missing key 'title'"),
    ('aliases = ["a100-80gb"', 'aliases = [7, "a100-80gb"', "aliases: expected a list of texts"),
    ("datasheet = ", "datasheet = 7 # ", "sources: expected a table of texts"),
    ("[board]", "[bord]", "unknown key 'bord'"),
    ("[peak_flop_per_second]", "[flop_per_cycle]", "unknown key 'flop_per_cycle.fp32'"),
    (PEAK_LINES, "", "missing section [peak_flop_per_second]"),
    (PEAK_LINES, "[peak_flop_per_second]\n", "peak_flop_per_second: no dtype has a value"),
    (PEAK_LINES, "[[peak_flop_per_second]]\n", "peak_flop_per_second: expected a table"),
    (
        "bf16 = {",
        "fp4 = {",
        "unknown key 'peak_flop_per_second.fp4'; did you mean nvfp4? allowed: fp32, tf32, bf16, fp16",
    ),
    ("bf16 = { value = 312", "bf16 = { value = 0", "peak_flop_per_second.bf16: Expected `float` > 0"),
    ('bf16 = { value = 312, unit = "Tflop/s"', "bf16 = { value = 312", "peak_flop_per_second.bf16: missing unit"),
    ('value = 2039, unit = "GB/s"', 'value = 2039, unit = "GB"', "board.memory_bytes_per_second: unit 'GB' is a"),
    ("memory_bytes = {", "memory = {", "unknown key 'board.memory'"),
    ("watts = { value = 400", "watts = { value = inf", "board.watts: expected a finite number"),
    ('source = "datasheet TDP"', 'source = "blog"', "board.watts: source does not begin with a key of [sources]"),
    ("accelerators_per_node = {", "# {", "missing key 'board.accelerators_per_node'"),
    ("[board]", "[board", "not valid TOML"),
    (FIRST_FLOOR, '[[floors]]\nquantity = "bf61', "floors[0]: Invalid enum value 'bf61_gemm'"),
    ("lower = 258\n", "", "floors[0]: the floor missing required field `lower`"),
    ("lower = 258\n", "lowr = 258\n", "unknown key 'floors[0].lowr'; did you mean lower? allowed: quantity, lower"),
    ("lower = 258\n", 'lower = "258"\n', "floors[0]: Expected `float`, got `str`"),
    ("lower = 258\n", "lower = 272\n", "floors[0]: expected 0 < lower <= upper; got 272.0 and 271.2"),
    ("lower = 258\n", "lower = nan\n", "floors[0]: expected 0 < lower <= upper; got nan and 271.2"),
    ("upper = 271.2\n", "upper = inf\n", "floors[0]: expected 0 < lower <= upper; got 258.0 and inf"),
    (
        'upper = 271.2\nunit = "Tflop/s"',
        'upper = 271.2\nunit = "GB/s"',
        "floors[0].unit; got 'GB/s', allowed: flop/s, ",
    ),
    ('date = "2024-04-29"', 'date = "29 April"', "floors[0].date; got '29 April', allowed: YYYY, YYYY-MM or"),
    ('source = "he cuBLAS', 'source = "blog cuBLAS', "floors[0]: source does not begin with a key of [sources]"),
    ('why = "at the power limit', 'note = "at the power limit', "floors[1]: an assumed floor needs `why`"),
    ("accelerators = 8\n", "", "floors[2]: `accelerators` and `algorithms` belong to all_reduce, and to nothing else"),
    ("lower = 258\n", "lower = 258\naccelerators = 8\n", "floors[0]: `accelerators` and `algorithms` belong to"),
    (FLOORS, f"[[no_floor]]\n{FLOORS}", "no_floor: expected a table of texts"),
    (FLOORS, f"[no_floor]\ncopi = 'x'\n{FLOORS}", "unknown key 'no_floor.copi'; did you mean copy? allowed: bf16"),
    (FLOORS, f"[no_floor]\nbf16_gemm = 'x'\n{FLOORS}", "no_floor.bf16_gemm: there is one under [[floors]]"),
]
IN_BLOOM: list[Case] = [
    ("heads = { value = 112", "heads = { value = 111", "kv_heads does not divide heads = 111; got 112"),
    ("data_parallel = { value = 8", "data_parallel = { value = 16", "= 768 accelerators, but cluster.accelerators"),
    ("accumulation = { value = 128", "accumulation = { value = 64", "1024 samples, but the global batch is 2048"),
    ('250880, unit = "token"', "250880", "missing unit"),
    ('sequence = { value = 2048, unit = "token"', 'sequence = { value = 2048, unit = "s"', "is a unit of s"),
    ("[architecture]\nlayers", "[architecture]\nlayer", "unknown key 'architecture.layer'"),
    ("[software]", "[software_]", "unknown key 'software_'"),
    ('source = "slurm (multi-head attention)"', 'source = "blog"', "does not begin with a key of [sources]"),
    ('source = "slurm (multi-head attention)"', 'source = ""', "source is empty"),
    ("layers = { value = 70", "layers = { value = 0", ">= 1"),
    ("layers = { value = 70", "layers = { value = 70.5", "expected an integer"),
    ('position = { value = "alibi"', 'position = { value = "sinus"', "allowed: alibi, learned, none, rotary"),
    (
        'position = { value = "alibi"',
        'rotary_base = { value = 9, unit = "1", kind = "stated", source = "slurm" }\nposition = { value = "alibi"',
        "architecture.rotary_base: only for rotary positions",
    ),
    ("vocabulary = { value = 250880", "vocabulary = { value = 250000", "at least vocabulary = 250680"),
]
IN_TABLES: list[Case] = [
    (
        '"Megatron-LM*" = "megatron-lm-2021"',
        '"Megatron-LM*" = "megatron-lm-1999"',
        "'Megatron-LM*': stack; got 'megatron-lm-1999', allowed: gpt-neox, ",
    ),
    (
        'values = { "1" = 0.67, "2" = 0.33 }',
        'values = { "1" = 0.67, "2" = 0.5 }',
        "open micro_batch: shares must add up to 1",
    ),
]
BROKEN: list[tuple[Loader, Path, list[Case]]] = [
    (machine_model, MACHINE_MODEL, IN_MACHINE_MODEL),
    (fit_scores, FIT_SCORES, IN_FIT_SCORES),
    (stacks, STACKS, IN_STACKS),
    (accelerator_at, A100, IN_A100),
    (load, BLOOM, IN_BLOOM),
    (load_tables, TABLES, IN_TABLES),
]


@pytest.mark.parametrize(("load_file", "recorded", "cases"), BROKEN, ids=[path.stem for _, path, _ in BROKEN])
def test_a_broken_file_is_refused_with_its_name_and_key(
    load_file: Loader, recorded: Path, cases: list[Case], tmp_path: Path
) -> None:
    text, wrong = recorded.read_text(encoding="utf-8"), []
    for number, (old, new, complaint) in enumerate(cases):
        assert old in text
        path = tmp_path / f"mine{number}.toml"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        with pytest.raises(InputError) as refusal:
            load_file(path)
        line = str(refusal.value)
        if not line.startswith(f"{path}: ") or complaint not in line or "\n" in line:
            wrong.append((old, new, complaint, line))
    assert wrong == []


@pytest.mark.parametrize(
    ("load_file", "what"),
    [(machine_model, "machine model"), (fit_scores, "scores of the fit"), (stacks, "stacks"), (load_tables, "tables")],
)
def test_a_file_that_is_not_there_is_refused(load_file: Loader, what: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"none.toml: cannot read the {what} file: No such file"):
        load_file(tmp_path / "none.toml")
    with pytest.raises(InputError, match="none.toml: cannot read the accelerator file: No such file"):
        accelerator_at(tmp_path / "none.toml")
