"""Published tables load as the runs they are; what they leave unsaid is assumed with a reason, or refused by name."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.catalog import reference_run
from reference_runs.dtype_words import DTYPES
from reference_runs.errors import InputError
from reference_runs.layout import Recomputation, StageAssignment
from reference_runs.machine_model import machine_model
from reference_runs.published import PublishedTable, load_table
from reference_runs.published_columns import MEMORY, NEEDED, STEP
from reference_runs.published_run import stack_name
from reference_runs.published_tables import PUBLISHED, TABLES, TableFacts, load_tables, shipped_tables
from reference_runs.run import Activation, Mask, Precision
from reference_runs.stack import stack_of, stacks
from tests.support.published_rows import ROWS_AND_USED

STACKS = {
    "megatron_sc21_table1": {"megatron-lm-2021"},
    "megatron_readme_2021_01": {"megatron-lm-early-2021"},
    "megatron_sc21_table2": {"megatron-lm-2021", "deepspeed-zero3-2021"},
    "korthikanti2022_table5": {"megatron-lm-2022"},
    "real_runs": {"deepspeed-pipeline", "glm-largescale", "gpt-neox", "metaseq"},
    "vtrain_multi_small": {"megatron-deepspeed"},
    "vtrain_single_h1024": {"megatron-deepspeed"},
    "mosaicml_a100_40gb": {"composer"},
    "playbook_h100_1b": {"nanotron"},
    "dgxc_24_11_bf16": {"megatron-core"},
    "mlperf_gpt3_h100_fp8": {"megatron-core-cuda-graph", "megatron-core-nemo-1", "megatron-core-nemo-2"},
    "nemo_24_07_fp8": {"megatron-core-nemo-1"},
    "mosaicml_h100_fp8": {"composer"},
    "megascale_megatron_lm": {"megatron-lm-2022"},
    "dgxc_25_02_grok1_moe": {"megatron-core-nemo-2"},
}
NETWORK_GB_PER_SECOND = {"BLOOM-176B": 50, "OPT-175B": 200, "GLM-130B": 200, "GPT-NeoX-20B": 100, "MT-NLG-530B": 200}


def table(name: str) -> PublishedTable:
    return load_table(PUBLISHED / f"{name}.csv")


def stated(name: str) -> dict[int, dict[str, str]]:
    """Line -> the cells of the file, read without the loader."""
    with open(PUBLISHED / f"{name}.csv", newline="", encoding="utf-8") as file:
        return dict(enumerate(csv.DictReader(file), start=2))


GOOD = stated("megatron_sc21_table1")[2]


def written(path: Path, *rows: dict[str, str]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def reason(tmp_path: Path, **changes: str) -> str:
    """Why a good row is skipped after these changes."""
    loaded = load_table(written(tmp_path / "own.csv", GOOD | changes))
    assert not loaded.rows
    (skipped,) = loaded.skipped
    assert skipped.line == 2
    return skipped.reason


def test_every_table_beside_the_file_is_described() -> None:
    described = {entry.file for entry in (*load_tables().tables, *load_tables().collectives)}
    assert described == {path.name for path in PUBLISHED.glob("*.csv")}
    for entry in (*load_tables().tables, *load_tables().collectives):
        assert entry.title
        assert entry.source
        assert entry.measured
        assert entry.conventions
    assert {path.stem for path in shipped_tables()} == set(ROWS_AND_USED)


@pytest.mark.parametrize("name", ROWS_AND_USED)
def test_a_table_has_the_published_rows_and_uses_those_that_are_complete(name: str) -> None:
    loaded = table(name)
    assert (len(loaded.rows) + len(loaded.skipped), len(loaded.rows)) == ROWS_AND_USED[name]
    assert len(stated(name)) == ROWS_AND_USED[name][0]
    assert all(each.reason for each in loaded.skipped)


@pytest.mark.parametrize("name", ROWS_AND_USED)
def test_a_row_says_what_its_line_of_the_file_says(name: str) -> None:
    loaded, lines = table(name), stated(name)
    complete = [*loaded.rows, *(each.row for each in loaded.skipped if each.row)]
    columns = {
        "layers": lambda row: row.architecture.layers,
        "hidden": lambda row: row.architecture.hidden,
        "heads": lambda row: row.architecture.heads,
        "kv_heads": lambda row: row.architecture.kv_heads,
        "ffn_hidden": lambda row: row.architecture.ffn_hidden,
        "vocab": lambda row: row.architecture.padded_vocabulary,
        "seq_len": lambda row: row.architecture.sequence,
        "gpus": lambda row: row.layout.ranks,
        "gpus_per_node": lambda row: row.accelerators_per_node,
        "dp": lambda row: row.layout.data_parallel * row.layout.expert_parallel,
        "tp": lambda row: row.layout.tensor_parallel,
        "pp": lambda row: row.layout.pipeline_stages,
        "vpp": lambda row: row.layout.virtual_stages,
        "cp": lambda row: row.layout.context_parallel,
        "sp": lambda row: row.layout.sequence_parallel,
        "zero_stage": lambda row: row.layout.zero_stage,
        "micro_batch": lambda row: row.layout.micro_batch,
        "global_batch": lambda row: row.recipe.global_batch,
        STEP: lambda row: row.step_seconds,
        MEMORY: lambda row: row.peak_bytes and row.peak_bytes / 2**30,
    }
    for row in complete:
        said = lines[row.line]
        assert (row.model, row.framework, row.status) == (said["model"], said["framework"], said.get("status", ""))
        for column, value in columns.items():
            if said.get(column):
                assert value(row) == float(said[column]), (row.line, column)
        if said.get("recompute"):
            assert row.layout.recomputation.value == said["recompute"]
        assert (row.step_seconds is None) == (not said[STEP])


@pytest.mark.parametrize("name", sorted(set(ROWS_AND_USED) - {"real_runs"}))
def test_whatever_fills_a_blank_column_is_an_assumption_of_the_file(name: str) -> None:
    loaded = table(name)
    every = {each.column for each in (*loaded.facts.assumed, *loaded.facts.open, *load_tables().assumed)}
    open_texts = {f"gpu {each.text}" for each in load_tables().open_accelerators} | {"dtype FP8", "dtype amp_fp8"}
    lines = stated(name)
    for row in loaded.rows:
        filled = {words.partition(" = ")[0] for words in row.assumed}
        link = lines[row.line].get("inter_link")
        assert filled <= every | open_texts | ({f"inter_link {link}"} if link else set())
        columns = (
            "vocab",
            "vpp",
            "cp",
            "sp",
            "zero_stage",
            "recompute",
            "micro_batch",
            "dtype",
            "kv_heads",
            "ffn_hidden",
        )
        # what a recorded run says of a mixture of experts fills the rest
        run = row.model in loaded.facts.catalog
        assert run or {column for column in columns if not lines[row.line].get(column)} <= filled


def test_every_assumption_has_a_reason_and_an_effect() -> None:
    tables = load_tables()
    for each in (*tables.assumed, *tables.open_accelerators, *itertools.chain(*(t.assumed for t in tables.tables))):
        assert each.why
        assert each.effect


def test_every_assumption_of_a_table_is_used_by_one_of_its_rows() -> None:
    for path in shipped_tables():
        loaded = load_table(path)
        used = {words.partition(" = ")[0] for row in loaded.rows for words in row.assumed}
        assert {each.column for each in loaded.facts.assumed} <= used, path.name


@pytest.mark.parametrize("name", ROWS_AND_USED)
def test_a_framework_stands_for_its_stack(name: str) -> None:
    assert {row.stack for row in table(name).rows} == STACKS[name]
    assert set(STACKS[name]) <= set(stacks())


def test_an_unknown_framework_is_generic() -> None:
    assert stack_name("my own trainer", TableFacts(file="own.csv")) == "generic"
    assert stack_name("", TableFacts(file="own.csv")) == "generic"


def test_what_a_table_says_of_a_framework_comes_before_what_is_generally_so() -> None:
    own = TableFacts(file="own.csv", stacks={"megatron-lm ptd*": "megatron-core"})
    assert stack_name("Megatron-LM PTD-P", own) == "megatron-core"
    assert stack_name("Megatron-LM", own) == stack_name("Megatron-LM PTD-P", TableFacts(file="own.csv"))
    assert stack_name("Megatron-LM", own) == "megatron-lm-2022"


def test_a_stack_that_is_not_described_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "tables.toml"
    text = TABLES.read_text(encoding="utf-8")
    line = '"Megatron-LM*" = "megatron-lm-2021"'
    assert line in text
    path.write_text(text.replace(line, '"Megatron-LM*" = "megatron-lm-1999"', 1), encoding="utf-8")
    with pytest.raises(InputError, match="'Megatron-LM\\*': stack; got 'megatron-lm-1999', allowed: gpt-neox, "):
        load_tables(path)


@pytest.mark.parametrize("name", ROWS_AND_USED)
def test_stages_have_counted_layers_where_the_stack_balances_them_and_only_there(name: str) -> None:
    for row in table(name).rows:
        counts, layout = row.layout.stage_layer_counts, row.layout
        balanced = stacks()[row.stack].switches.balances_stages
        assert (counts is not None) == (balanced and layout.pipeline_stages > 1 and layout.virtual_stages == 1)
        if counts is not None:
            assert (len(counts), sum(counts)) == (layout.pipeline_stages, row.architecture.layers)
            # each stage takes its share, and the last what is left and the head
            assert counts[0] == max(counts) > counts[-1]


def test_a_row_that_a_table_leaves_open_may_be_several_and_none_is_chosen() -> None:
    rows = table("megascale_megatron_lm").rows
    assert rows
    for row in rows:
        found = {(each.layout.micro_batch, each.layout.recomputation.value): share for share, each in row.alternatives}
        assert sum(found.values()) == pytest.approx(1)
        assert set(found) == {(1, "selective"), (1, "full"), (2, "selective"), (2, "full")}
        assert max(found, key=lambda each: found[each]) == (row.layout.micro_batch, row.layout.recomputation.value)
        assert not any(each.alternatives for _, each in row.alternatives)


def test_what_a_row_states_is_never_open() -> None:
    stated_chunks = [row for row in table("nemo_24_07_fp8").rows if row.layout.virtual_stages > 1]
    assert any(not row.alternatives for row in stated_chunks)
    assert all(not row.alternatives for row in table("mlperf_gpt3_h100_fp8").rows)


def test_shares_of_what_is_open_add_up_to_1(tmp_path: Path) -> None:
    path, text = tmp_path / "tables.toml", TABLES.read_text(encoding="utf-8")
    line = 'values = { "1" = 0.67, "2" = 0.33 }'
    assert line in text
    path.write_text(text.replace(line, 'values = { "1" = 0.67, "2" = 0.5 }', 1), encoding="utf-8")
    with pytest.raises(InputError, match="open micro_batch: shares must add up to 1"):
        load_tables(path)


def test_the_rows_of_real_runs_agree_with_the_catalog() -> None:
    loaded = table("real_runs")
    for row in loaded.rows:
        run = reference_run(loaded.facts.catalog[row.model])
        assert row.architecture == run.architecture
        assert row.recipe == run.recipe
        assert row.accelerator == (run.cluster and run.cluster.accelerator)
        assert row.network_bytes_per_second == NETWORK_GB_PER_SECOND[row.model] * 1e9
        assert run.cluster is not None
        assert row.network_bytes_per_second == (
            (run.cluster.network_interfaces_per_node or 0) * (run.cluster.network_interface_bandwidth or 0)
        )
        assert row.stack == stack_of(run.software and run.software.stack).name
        changed = {
            name
            for name in type(row.layout).__struct_fields__
            if getattr(row.layout, name) != getattr(run.layout, name) and name != "accumulation"
        }
        # the catalog's run of MT-NLG is the smallest of the three that were measured; ZeRO-2 moves as much as ZeRO-3
        # without resharding, which is what the catalog says of OPT; the catalog's runs do not say whether they send
        # shares, which is on by default in the forks of Megatron-LM and assumed of them
        if "scatter_gather = 1" in row.assumed:
            assert row.layout.scatter_gather
            changed.remove("scatter_gather")
        assert changed <= {"MT-NLG-530B": {"data_parallel"}, "OPT-175B": {"zero_stage"}}.get(row.model, set())
        times = [run.reported.step_seconds, *(each.step_seconds for each in run.measured)]
        assert any(time is not None and row.step_seconds == pytest.approx(time, rel=0.01) for time in times)
    (bloom,) = [row for row in loaded.rows if row.model == "BLOOM-176B"]
    assert bloom.layout.stage_assignment is StageAssignment.LAYERS_AND_TABLES
    assert bloom.recipe.precision is Precision.BF16
    assert bloom.peak_bytes == pytest.approx(reference_run("bloom-176b").reported.peak_bytes, rel=1e-3)


def test_conventions_of_the_tables_reach_the_rows() -> None:
    for row in table("dgxc_24_11_bf16").rows:
        assert row.layout.sequence_parallel == (row.layout.tensor_parallel > 1)
        assert row.layout.recomputation is Recomputation.NONE
        assert row.architecture.activation.gated == row.model.startswith("llama")
        assert row.network_bytes_per_second == (400e9 if row.layout.ranks > 8 else None)
    for row in table("playbook_h100_1b").rows:
        assert row.architecture.activation is Activation.SWIGLU
        assert row.layout.tensor_parallel <= 8
        assert row.network_bytes_per_second == 400e9
    for row in table("vtrain_multi_small").rows:
        padded = {1: 50257, 2: 50432, 4: 50688, 8: 51200, 16: 51200}[row.layout.tensor_parallel]
        assert row.architecture.padded_vocabulary == padded
        assert row.network_bytes_per_second == 100e9
    for row in table("mosaicml_a100_40gb").rows:
        assert (row.layout.zero_stage, row.layout.fused_attention, row.network_bytes_per_second) == (3, True, 200e9)


def test_the_accelerator_that_a_text_leaves_open_is_said() -> None:
    row = table("vtrain_single_h1024").rows[0]
    assert "gpu A100 = a100-sxm-80gb" in row.assumed
    for text in ("H200", "B200", "GB200", "MI300X", "V100", "A100-40GB-SXM", "H100-80GB-SXM"):
        loaded = load_tables()
        known = {name.casefold(): device for name, device in loaded.accelerators.items()}
        opened = {each.text: each.accelerator for each in loaded.open_accelerators}
        assert accelerator(opened.get(text) or known.get(text.casefold()) or text).name


def test_the_single_node_table_of_vtrain_holds_sixteen_layer_times() -> None:
    """For each (tp, micro-batch, dp, pp): t = m (L a + c) + L d + e. And a pp is one number for each (tp, micro-batch).

    Times have six digits behind the point: rounding alone leaves 0.0005 ms.
    """
    groups: dict[tuple[int, int, int, int], list[tuple[list[float], float]]] = {}
    for row in table("vtrain_single_h1024").rows:
        layout, layers = row.layout, row.architecture.layers
        passes = row.recipe.global_batch // (layout.data_parallel * layout.micro_batch)
        key = (layout.tensor_parallel, layout.micro_batch, layout.data_parallel, layout.pipeline_stages)
        groups.setdefault(key, []).append(([passes * layers, passes, layers, 1], row.step_seconds or 0))
    layer_times: dict[tuple[int, int], list[float]] = {}
    for (tp, micro_batch, dp, pp), cells in groups.items():
        terms, seconds = np.array([term for term, _ in cells]), np.array([time for _, time in cells])
        solution, _, rank, _ = np.linalg.lstsq(terms, seconds, rcond=None)
        residual = np.abs(terms @ solution - seconds).max()
        assert residual < (0.001e-3 if dp == 1 else 0.05e-3), (tp, micro_batch, dp, pp)
        if rank == 4:  # where the micro-batches vary too
            layer_times.setdefault((tp, micro_batch), []).append(pp * solution[0])
    assert len({key[:2] for key in groups}) == 16
    assert len(layer_times) == 12
    for times in layer_times.values():
        assert max(times) / min(times) < 1.001


def test_the_table_of_collectives_names_three_on_seven_sizes_of_cluster() -> None:
    lines = stated("collectives_measured").values()
    assert {(row["collective"], row["nodes"]) for row in lines} == {
        (collective, str(2**power)) for collective in ("AllReduce", "AllGather", "ReduceScatter") for power in range(7)
    }
    assert all(float(row["band_low"]) <= float(row["bandwidth_GBps_mean"]) <= float(row["band_high"]) for row in lines)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"layers": "", "hidden": "", "heads": ""},
            "layers, hidden, heads are blank, and no recorded run is called 'GPT-1.7B'",
        ),
        ({"micro_batch": ""}, "micro_batch is blank"),
        ({"layers": "many"}, "layers: expected a number from 0 to 1e+18; got 'many'"),
        ({"layers": "2.5"}, "layers: expected an integer from 1 to 10000; got '2.5'"),
        ({"hidden": "-4"}, "hidden: expected a number from 0 to 1e+18; got '-4'"),
        ({STEP: "inf"}, f"{STEP}: expected a number from 0 to 1e+18; got 'inf'"),
        ({STEP: "0"}, f"{STEP}: expected a number from 1e-09 on; got '0'"),
        ({STEP: ""}, f"{STEP} and {MEMORY} are blank"),
        ({"gpu": "Z80"}, f"gpu: 'Z80' is not known; allowed: {', '.join(accelerator_names())}"),
        ({"gpus": "64"}, "dp * tp * pp * cp = 32, but gpus = 64"),
        ({"heads": "5"}, "heads = 5 does not divide hidden = 2304"),
        ({"tp": "5", "dp": "1", "gpus": "5"}, "layout.tensor_parallel does not divide architecture.heads = 24; got 5"),
        ({"zero_stage": "4"}, "zero_stage: expected an integer from 0 to 3; got '4'"),
        ({"recompute": "some"}, "recompute: 'some' is not known; allowed: none, selective, full, from-input"),
        ({"dtype": "int3"}, f"dtype: 'int3' is not known; allowed: {', '.join(DTYPES)}"),
        ({"sp": "maybe"}, "sp: 'maybe' is not known; allowed: 0, false, no, 1, true, yes"),
        ({"status": "oom"}, "status is oom"),
    ],
)
def test_a_skipped_row_names_what_it_lacks(tmp_path: Path, changes: dict[str, str], expected: str) -> None:
    assert reason(tmp_path, **changes) == expected


def test_expert_parallelism_needs_experts(tmp_path: Path) -> None:
    words = "ep: expert parallelism needs experts: as a column, or of a recorded mixture's name"
    assert reason(tmp_path, ep="8") == words


def test_unknown_columns_are_ignored_and_the_needed_ones_suffice(tmp_path: Path) -> None:
    needed = {column: GOOD[column] for column in NEEDED} | {"dtype": "fp16", "colour": "green"}
    (row,) = load_table(written(tmp_path / "own.csv", needed)).rows
    assert row.stack == "generic"
    assert "network_bytes_per_second = 2e+11" in row.assumed


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("column", ["dp", "gpus"])
def test_accelerators_and_data_parallelism_say_each_other(tmp_path: Path, column: str, *, absent: bool) -> None:
    split = GOOD | {"gpus": "64", "dp": "4", "tp": "2", "pp": "2", "cp": "4"}
    less = {name: text for name, text in (split | {column: ""}).items() if not absent or name != column}
    (row,), (same,) = (load_table(written(tmp_path / "own.csv", each)).rows for each in (less, split))
    (more,) = set(row.assumed) - set(same.assumed)
    assert more == {"dp": "dp = gpus / (tp * pp * cp) = 4", "gpus": "gpus = dp * tp * pp * cp = 64"}[column]
    assert row.layout == same.layout
    assert row.layout.ranks == 64


def test_axes_that_do_not_divide_the_accelerators_are_named(tmp_path: Path) -> None:
    words = "dp is blank, and tp * pp * cp = 6 does not divide gpus = 32"
    assert reason(tmp_path, dp="", tp="3", pp="2") == words
    assert reason(tmp_path, dp="", gpus="") == "gpus, dp are blank"


@pytest.mark.parametrize("column", [column for column in NEEDED if column not in ("dp", "gpus", "tp", "pp")])
def test_a_missing_column_is_refused_by_name(tmp_path: Path, column: str) -> None:
    path = written(tmp_path / "own.csv", {name: text for name, text in GOOD.items() if name not in (column, "model")})
    with pytest.raises(InputError, match=rf"own.csv: missing column {column}; allowed: layers, hidden, .* and source"):
        load_table(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "missing column layers"),
        (b"\xff\x80", "expected a text file; got byte 0xff in line 1"),
        (",".join((*NEEDED, "tp")).encode(), "column given twice; got 'tp'"),
        (",".join(NEEDED).encode() + b'\n"' + b"x" * 200_000, "not a table of comma-separated values"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: bytes, expected: str) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes(text)
    with pytest.raises(InputError, match=expected):
        load_table(path)
    with pytest.raises(InputError, match="cannot read the table"):
        load_table(tmp_path)


def test_a_row_of_another_length_is_skipped(tmp_path: Path) -> None:
    path = written(tmp_path / "own.csv", GOOD)
    path.write_text(path.read_text(encoding="utf-8") + "1,2,3\n\n", encoding="utf-8")
    loaded = load_table(path)
    assert len(loaded.rows) == 1
    assert [(each.line, each.reason) for each in loaded.skipped] == [(3, "3 cells under a header of 34 columns")]


def test_what_is_said_to_be_measured_are_the_accelerators_and_stacks_of_the_published_rows() -> None:
    rows = [row for path in shipped_tables() for row in load_table(path).rows if row.step_seconds]
    families = machine_model().families.values()
    assert {name for family in families for name in family.measured} == {row.accelerator for row in rows}
    assert all(set(family.measured) <= set(family.accelerators) for family in families)
    assert {stack.name for stack in stacks().values() if stack.measured} == {row.stack for row in rows}


@pytest.mark.parametrize(
    ("framework", "older", "later"),
    [
        ("Megatron-LM", "megatron-lm-2022", "megatron-core"),
        ("NVIDIA NeMo 24.09", "megatron-core-nemo-2", "megatron-core-nemo-2"),
        ("MosaicML llm-foundry", "composer", "composer"),
        ("FSDP2", "pytorch", "pytorch"),
        ("my own trainer", "generic", "generic"),
    ],
)
def test_a_frameworks_name_means_its_version_of_the_accelerators_time(framework: str, older: str, later: str) -> None:
    facts = TableFacts(file="own.csv")
    assert stack_name(framework, facts, "a100-sxm-80gb") == older
    assert stack_name(framework, facts, "h100-sxm") == stack_name(framework, facts, "b200-sxm") == later


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen2 style", "megatron-core"),
        ("my llama", "megatron-core"),
        ("my GPT", "megatron-lm-2022"),
        ("", "megatron-lm-2022"),
    ],
)
def test_a_frameworks_name_means_its_version_of_the_models_time(tmp_path: Path, model: str, name: str) -> None:
    shape = {"source": "", "model": model, "kv_heads": "", "ffn_hidden": "28672"}
    (row,) = load_table(
        written(tmp_path / "own.csv", GOOD | shape | {"gpu": "a100-sxm-80gb", "framework": "Megatron-LM"})
    ).rows
    assert row.stack == name
    dated = GOOD | shape | {"gpu": "a100-sxm-80gb", "framework": "Megatron-LM 2021"}
    (row,) = load_table(written(tmp_path / "own.csv", dated)).rows
    assert row.stack == "megatron-lm-2021"


def test_experts_of_a_recorded_run_lie_within_data_parallelism_and_divide_it(tmp_path: Path) -> None:
    name = "dgxc_25_02_grok1_moe"
    loaded, lines = table(name), stated(name)
    for row in loaded.rows:
        said, layout = lines[row.line], row.layout
        assert layout.expert_parallel == int(said["ep"])
        assert layout.data_parallel * layout.expert_parallel == int(said["dp"])
        assert layout.virtual_stages == int(said["vpp"] or 1)
        assert row.recipe.product_format.value == ("fp8-delayed" if said["dtype"] == "fp8" else "none")
        assert (row.architecture.layers, layout.ranks) == (int(said["layers"]), int(said["gpus"]))
    uneven = next(iter(lines.values())) | {"ep": "3"}
    (skipped,) = load_table(written(tmp_path / f"{name}.csv", uneven)).skipped
    assert skipped.reason == "ep = 3 does not divide dp = 2, nor tp * dp"


def test_packed_sequences_have_documents_where_a_row_says_their_length_or_is_fine_tuning(tmp_path: Path) -> None:
    (row,) = load_table(written(tmp_path / "own.csv", GOOD | {"mean_document": "300"})).rows
    assert (row.architecture.mask, row.architecture.mean_document) == (Mask.DOCUMENTS, 300)
    (row,) = load_table(written(tmp_path / "own.csv", GOOD)).rows
    assert (row.architecture.mask, row.architecture.mean_document) == (Mask.CAUSAL, None)
    assert "mean_document: expected an integer from 1" in reason(tmp_path, mean_document="0")
    packed = [row for row in table("nemo_24_07_fp8").rows if row.architecture.mask is Mask.DOCUMENTS]
    # three rows of fine-tuning, whose batch is 32; pre-training of the same models has 128
    assert [(row.model, row.recipe.global_batch) for row in packed] == [(f"LLAMA2-{size}B", 32) for size in (7, 13, 70)]
    assert all("mean_document = 256" in row.assumed for row in packed)
