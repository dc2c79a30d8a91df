"""Shipped tables load as the runs they are; what they leave unsaid is assumed with a reason."""

from __future__ import annotations

import csv
import functools
import itertools
from pathlib import Path

import numpy as np
import pytest

from reference_runs.accelerator import accelerator, accelerator_names
from reference_runs.catalog import reference_run, run_names
from reference_runs.layout import Recomputation, StageAssignment
from reference_runs.machine_model import machine_model
from reference_runs.published import PublishedTable, load_table
from reference_runs.published_cells import MEMORY, STEP
from reference_runs.published_run import stack_reading
from reference_runs.published_tables import (
    PUBLISHED,
    TableFacts,
    held_out_tables,
    load_tables,
    same_origin,
    shipped_tables,
)
from reference_runs.run import Activation, Mask, Precision
from reference_runs.stack import Modules, stack_of, stacks
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
    "torchtitan_202412": {"torchtitan", "torchtitan-2024", "torchtitan-async-tp-2024"},
    "torchtitan_202412_405b": {"torchtitan-2024", "torchtitan-async-tp-2024"},
    "megatron_bridge_25_09_26_02": {"megatron-core-bridge", "megatron-core-cuda-graph"},
}
NETWORK_GB_PER_SECOND = {"BLOOM-176B": 50, "OPT-175B": 200, "GLM-130B": 200, "GPT-NeoX-20B": 100, "MT-NLG-530B": 200}


def stack_name(framework: str, facts: TableFacts, device: str = "") -> str:
    return stack_reading(framework, facts, device).stack.name


@functools.cache
def tables() -> dict[str, PublishedTable]:
    """The shipped tables by name."""
    return {name: load_table(PUBLISHED / f"{name}.csv") for name in ROWS_AND_USED}


def stated(name: str) -> dict[int, dict[str, str]]:
    """Line -> the cells of the file, read without the loader."""
    with open(PUBLISHED / f"{name}.csv", newline="", encoding="utf-8") as file:
        return dict(enumerate(csv.DictReader(file), start=2))


def written(path: Path, *rows: dict[str, str]) -> PublishedTable:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return load_table(path)


def test_every_table_beside_the_file_is_described_with_reasons_and_effects() -> None:
    described = (*load_tables().tables, *load_tables().collectives)
    assert {entry.file for entry in described} == {path.name for path in PUBLISHED.glob("*.csv")}
    assert {path.stem for path in (*shipped_tables(), *held_out_tables())} == set(ROWS_AND_USED)
    needed = ("title", "source", "measured", "conventions")
    assert [(each.file, key) for each in described for key in needed if not getattr(each, key)] == []
    assumed = itertools.chain(load_tables().assumed, *(table.assumed for table in load_tables().tables))
    unreasoned = [each for each in (*assumed, *load_tables().open_accelerators) if not (each.why and each.effect)]
    assert unreasoned == []


def test_a_table_has_the_published_rows_and_uses_those_that_are_complete() -> None:
    assert {
        name: (len(table.rows) + len(table.skipped), len(table.rows)) for name, table in tables().items()
    } == ROWS_AND_USED
    assert {name: len(stated(name)) for name in tables()} == {name: rows for name, (rows, _) in ROWS_AND_USED.items()}
    assert all(each.reason for table in tables().values() for each in table.skipped)


def test_a_row_says_what_its_line_of_the_file_says() -> None:
    columns = {
        "model": lambda row: row.model,
        "framework": lambda row: row.framework,
        "status": lambda row: row.status,
        "recompute": lambda row: row.layout.recomputation.value,
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
    wrong = []
    for name, table in tables().items():
        lines = stated(name)
        for row in (*table.rows, *(each.row for each in table.skipped if each.row)):
            said = lines[row.line]
            for column, value in columns.items():
                found = value(row)
                if said.get(column) and found != (said[column] if isinstance(found, str) else float(said[column])):
                    wrong.append((name, row.line, column, found))
            wrong += [] if (row.step_seconds is None) == (not said[STEP]) else [(name, row.line, STEP, "blank")]
    assert wrong == []


def test_whatever_fills_a_blank_column_is_an_assumption_of_the_file_or_of_the_accelerators() -> None:
    columns = {"vocab", "vpp", "cp", "sp", "zero_stage", "recompute", "micro_batch", "dtype", "kv_heads", "ffn_hidden"}
    open_texts = {f"gpu {each.text}" for each in load_tables().open_accelerators} | {"dtype FP8", "dtype amp_fp8"}
    unknown, unfilled = [], []
    for name, table in tables().items():
        if name == "real_runs":
            continue
        every = {each.column for each in (*table.facts.assumed, *table.facts.open, *load_tables().assumed)}
        lines = stated(name)
        for row in table.rows:
            said = lines[row.line]
            filled = {words.partition(" = ")[0] for words in row.assumed}
            of_accelerator = {"gpus_per_node", "network_bytes_per_second"}
            allowed = every | open_texts | of_accelerator | {f"inter_link {said.get('inter_link')}"}
            allowed |= {f"accumulation {said.get('grad_accum')}"}  # which the table's conventions call wrong
            unknown += [(name, row.line, filled - allowed)] if filled - allowed else []
            blank = {column for column in columns if not said.get(column)}
            # what a recorded run says of a mixture of experts fills the rest
            if row.model not in table.facts.catalog and not blank <= filled:
                unfilled.append((name, row.line, blank - filled))
    assert (unknown, unfilled) == ([], [])


def test_a_row_that_says_nothing_of_nodes_has_those_of_its_accelerator(tmp_path: Path) -> None:
    """A file has 8 accelerators of each: as many nodes as theirs need, with their network, or one node and no rate."""
    names = [name for name in accelerator_names() if name != "this-cpu"]
    head = f"model,gpu,gpus,dp,tp,pp,global_batch,micro_batch,seq_len,{STEP}\n"
    path = tmp_path / "own.csv"
    path.write_text(head + "".join(f"llama2-7b,{name},8,8,1,1,8,1,512,1\n" for name in names), encoding="utf-8")
    table = load_table(path)
    assert table.skipped == ()
    for name, row in zip(names, table.rows, strict=True):
        board = accelerator(name).board
        expected = board.usual_network_bytes_per_second(of_node := board.accelerators_per_node)
        assert (row.accelerators_per_node, row.network_bytes_per_second) == (of_node, expected if of_node < 8 else None)


def test_every_assumption_of_a_table_is_used_by_one_of_its_rows() -> None:
    unused = {}
    for name, table in tables().items():
        used = {words.partition(" = ")[0] for row in table.rows for words in row.assumed}
        unused[name] = {each.column for each in table.facts.assumed} - used
    assert not any(unused.values()), unused


def test_a_framework_stands_for_its_stack() -> None:
    assert {name: {row.stack for row in table.rows} for name, table in tables().items()} == STACKS
    assert set().union(*STACKS.values()) <= set(stacks())


@pytest.mark.parametrize(
    ("framework", "older", "later"),
    [
        ("Megatron-LM", "megatron-lm-2022", "megatron-core"),
        ("NVIDIA NeMo 24.09", "megatron-core-nemo-2", "megatron-core-nemo-2"),
        ("MosaicML llm-foundry", "composer", "composer"),
        ("FSDP2", "pytorch", "pytorch"),
        ("my own trainer", "generic", "generic"),
        ("", "generic", "generic"),
    ],
)
def test_a_frameworks_name_means_its_version_of_the_accelerators_time(framework: str, older: str, later: str) -> None:
    facts = TableFacts(file="own.csv")
    assert stack_name(framework, facts) == stack_name(framework, facts, "a100-sxm-80gb") == older
    assert stack_name(framework, facts, "h100-sxm") == stack_name(framework, facts, "b200-sxm") == later


def test_what_a_table_says_of_a_framework_comes_before_what_is_generally_so() -> None:
    own = TableFacts(file="own.csv", stacks={"megatron-lm ptd*": "megatron-core"})
    assert stack_name("Megatron-LM PTD-P", own) == "megatron-core"
    assert stack_name("Megatron-LM", own) == stack_name("Megatron-LM PTD-P", TableFacts(file="own.csv"))


def test_stages_have_counted_layers_where_the_stack_balances_them_and_only_there() -> None:
    for row in (row for table in tables().values() for row in table.rows):
        counts, layout = row.layout.stage_layer_counts, row.layout
        balanced = stacks()[row.stack].switches.modules is Modules.NANOTRON
        assert (counts is not None) == (balanced and layout.pipeline_stages > 1 and layout.virtual_stages == 1)
        if counts is not None:
            assert (len(counts), sum(counts)) == (layout.pipeline_stages, row.architecture.layers)
            # each stage takes its share, and the last what is left and the head
            assert counts[0] == max(counts) > counts[-1]


def test_a_row_that_a_table_leaves_open_may_be_several_and_none_is_chosen() -> None:
    rows = tables()["megascale_megatron_lm"].rows
    assert rows
    for row in rows:
        found = {(each.layout.micro_batch, each.layout.recomputation.value): share for share, each in row.alternatives}
        assert sum(found.values()) == pytest.approx(1)
        assert set(found) == {(1, "selective"), (1, "full"), (2, "selective"), (2, "full")}
        assert max(found, key=lambda each: found[each]) == (row.layout.micro_batch, row.layout.recomputation.value)
        assert not any(each.alternatives for _, each in row.alternatives)


def test_what_a_row_states_is_never_open() -> None:
    stated_chunks = [row for row in tables()["nemo_24_07_fp8"].rows if row.layout.virtual_stages > 1]
    assert any(not row.alternatives for row in stated_chunks)
    assert all(not row.alternatives for row in tables()["mlperf_gpt3_h100_fp8"].rows)


def test_the_rows_of_real_runs_agree_with_the_catalog() -> None:
    loaded = tables()["real_runs"]
    for row in loaded.rows:
        run = reference_run(loaded.facts.catalog[row.model])
        assert row.architecture == run.architecture
        assert row.recipe == run.recipe
        assert row.accelerator == (run.cluster and run.cluster.accelerator)
        assert row.network_bytes_per_second == NETWORK_GB_PER_SECOND[row.model] * 1e9
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
    for row in tables()["dgxc_24_11_bf16"].rows:
        assert row.layout.sequence_parallel == (row.layout.tensor_parallel > 1)
        assert row.layout.recomputation is Recomputation.NONE
        assert row.architecture.activation.gated == row.model.startswith("llama")
        assert row.network_bytes_per_second == (400e9 if row.layout.ranks > 8 else None)
    for row in tables()["playbook_h100_1b"].rows:
        assert row.architecture.activation is Activation.SWIGLU
        assert row.layout.tensor_parallel <= 8
        assert row.network_bytes_per_second == 400e9
    for row in tables()["vtrain_multi_small"].rows:
        padded = {1: 50257, 2: 50432, 4: 50688, 8: 51200, 16: 51200}[row.layout.tensor_parallel]
        assert row.architecture.padded_vocabulary == padded
        assert row.network_bytes_per_second == 100e9
    for row in tables()["mosaicml_a100_40gb"].rows:
        assert (row.layout.zero_stage, row.layout.fused_attention, row.network_bytes_per_second) == (3, True, 200e9)


def test_the_accelerator_that_a_text_leaves_open_is_said() -> None:
    row = tables()["vtrain_single_h1024"].rows[0]
    assert "gpu A100 = a100-sxm-80gb" in row.assumed
    opened = {each.text: each.accelerator for each in load_tables().open_accelerators}
    assert {text: accelerator(text).name for text in opened} == opened


def test_the_single_node_table_of_vtrain_holds_sixteen_layer_times() -> None:
    """For each (tp, micro-batch, dp, pp): t = m (L a + c) + L d + e. And a pp is one number for each (tp, micro-batch).

    Times have six digits behind the point: rounding alone leaves 0.0005 ms.
    """
    groups: dict[tuple[int, int, int, int], list[tuple[list[float], float]]] = {}
    for row in tables()["vtrain_single_h1024"].rows:
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


def test_what_is_said_to_be_measured_are_the_accelerators_and_stacks_of_the_published_rows() -> None:
    determining = [PUBLISHED / facts.file for facts in load_tables().tables if facts.determines]
    paths = [*shipped_tables(), *determining]
    rows = [row for path in paths for row in load_table(path).rows if row.step_seconds]
    families = machine_model().families.values()
    assert {name for family in families for name in family.measured} == {row.accelerator for row in rows}
    assert all(set(family.measured) <= set(family.accelerators) for family in families)
    assert {stack.name for stack in stacks().values() if stack.measured} == {row.stack for row in rows}


def test_experts_of_a_recorded_run_lie_within_data_parallelism_and_divide_it(tmp_path: Path) -> None:
    name = "dgxc_25_02_grok1_moe"
    loaded, lines = tables()[name], stated(name)
    for row in loaded.rows:
        said, layout = lines[row.line], row.layout
        assert layout.expert_parallel == int(said["ep"])
        assert layout.data_parallel * layout.expert_parallel == int(said["dp"])
        assert layout.virtual_stages == int(said["vpp"] or 1)
        assert row.recipe.product_format.value == ("fp8-delayed" if said["dtype"] == "fp8" else "none")
        assert (row.architecture.layers, layout.ranks) == (int(said["layers"]), int(said["gpus"]))


def test_rows_of_fine_tuning_have_packed_documents() -> None:
    packed = [row for row in tables()["nemo_24_07_fp8"].rows if row.architecture.mask is Mask.DOCUMENTS]
    # three rows of fine-tuning, whose batch is 32; pre-training of the same models has 128
    assert [(row.model, row.recipe.global_batch) for row in packed] == [(f"LLAMA2-{size}B", 32) for size in (7, 13, 70)]
    assert all("mean_document = 256" in row.assumed for row in packed)


def test_each_source_of_a_shipped_table_is_of_that_table_and_others_of_the_one_that_they_are_like() -> None:
    like = {
        "vTrain ground_truth_single.csv": "vtrain_single_h1024",
        "vTrain": "vtrain_multi_small",
        "VIA-Research/vTrain, several nodes": "vtrain_multi_small",
        "Megatron-LM SC21 Figure 13 (arXiv 2104.04473)": "megatron_sc21_table1",
        "Megatron-LM README Jan 2021": "megatron_readme_2021_01",
        "MosaicML llm-foundry benchmarking README: H100 80GB BF16": "mosaicml_a100_40gb",
        "MosaicML llm-foundry benchmarking README: H100 80GB FP8, several nodes": "mosaicml_h100_fp8",
        "HF ultrascale-playbook benchmarks_interactive.html, 80B": "playbook_h100_1b",
        "NVIDIA dgxc-benchmarking release 25.02 (llama3.1/README_405b.md)": "dgxc_24_11_bf16",
        "MLPerf Training v5.0 (NVIDIA/results/llama31_405b)": "mlperf_gpt3_h100_fp8",
        "NVIDIA NeMo performance_summary.md [NeMo25.02]": "nemo_24_07_fp8",
        **dict.fromkeys(("my own cluster", "devtrain runs", "")),
    }
    own = {cells["source"]: name for name in tables() for cells in stated(name).values()}
    assert set(own.values()) == set(tables())
    found = {source: origin and origin.name for source in like | own for origin in [same_origin(source)]}
    assert found == like | own


def test_a_row_that_names_a_run_and_no_shape_has_its_architecture(tmp_path: Path) -> None:
    cells = {"gpu": "b200", "gpus": "64", "cp": "1", "pp": "1", "global_batch": "256", "micro_batch": "1", STEP: "10"}
    for tp in (1, 2):
        runs = {name: reference_run(name).architecture for name in run_names()}
        fitting = {name: shape for name, shape in runs.items() if shape.heads % tp == shape.ffn_hidden % tp == 0}
        rows = [cells | {"model": name, "tp": str(tp), "dp": str(64 // tp)} for name in fitting]
        assert {row.model: row.architecture for row in written(tmp_path / "own.csv", *rows).rows} == fitting
