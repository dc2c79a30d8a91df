"""Predictions for a machine that a calibration measured: laws, arithmetic, and what is refused or said."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.accelerator import accelerator
from reference_runs.catalog import reference_run, run_names
from reference_runs.incomplete import missing_keys
from reference_runs.layout import Layout
from reference_runs.run import ProductFormat, ReferenceRun, Workload
from suite.__main__ import main
from suite.machine.fingerprint import Fingerprint
from suite.machine.profile import SCHEMA, Profile, encode
from suite.machine.timing_tables import Axis, Line, Subject, Table, fitted
from suite.predict.analytic.usable_memory import usable_memory
from suite.predict.machine_model.from_profile import profiled_machine
from suite.predict.machine_model.model import RunMachine
from suite.predict.recorded_run.prediction import run_prediction
from tests.support.profiles import profile as sparse_profile
from tests.support.profiles import timing

DTYPES = ("fp32", "bf16", "fp16")
CPU = Fingerprint(
    node="0123abcd", device="cpu", hardware={"cpu": "A", "cores": "2", "memory": "24 GiB", "gpus": "none"}, software={}
)
NETWORK = 1.25e9


def grid(
    operation: str, variant: str, dtype: str, ranks: int, points: dict[str, tuple[float, ...]], unit: float
) -> Table:
    """Seconds of one over all sizes times `unit`."""
    axes = tuple(Axis(name, own) for name, own in points.items())
    cells = []
    for sizes in product(*points.values()):
        seconds = unit
        for size in sizes:
            seconds *= size
        cells.append(timing(seconds))
    subject = Subject(operation=operation, variant=variant, dtype=dtype, ranks=ranks)
    return Table(subject=subject, axes=axes, timings=tuple(cells))


def line(operation: str, variant: str, dtype: str, ranks: int, fixed: float, unit_seconds: float) -> Line:
    sizes = [256.0, 1e6]
    timings = [timing(fixed + unit_seconds * size) for size in sizes]
    return fitted(Subject(operation=operation, variant=variant, dtype=dtype, ranks=ranks), "element", sizes, timings)


def measured(
    *,
    faster: float = 1.0,
    flop_per_second: float = 1e11,
    small: float = 0.5,
    memory: float = 1e10,
    beside_products: float = 1.0,
    ranks: int = 2,
    fingerprint: Fingerprint = CPU,
    left_out: str = "",
) -> Profile:
    """A whole profile of a machine that is `faster` in everything.

    Args:
        small: share of the rate that products reach whose M is the first point.
        beside_products: factor on the speed of all that is no matrix product.
    """
    tables, lines = [], []
    other = faster * beside_products
    sizes = (64.0, 512.0)
    for dtype in DTYPES:
        for variant in ("NT", "NN", "TN"):
            whole = grid("product", variant, dtype, ranks, dict.fromkeys("MNK", sizes), 2 / (faster * flop_per_second))
            cells = [
                timing(cell.seconds / small) if place < len(whole.timings) // 2 else cell
                for place, cell in enumerate(whole.timings)
            ]
            tables.append(msgspec.structs.replace(whole, timings=tuple(cells)))
        for variant in ("forward", "backward"):
            axes = {"batch * heads": (2.0, 64.0), "sequence": (16.0, 64.0), "head_dim": (8.0, 32.0)}
            tables.append(grid("attention", variant, dtype, ranks, axes, 1e-9 / faster))
            tables.append(
                grid("layer_norm", variant, dtype, ranks, {"rows": (8.0, 64.0), "columns": (8.0, 64.0)}, 2e-9 / other)
            )
            for operation in ("dropout", "gelu", "gelu_tanh", "relu"):
                lines.append(line(operation, variant, dtype, ranks, 1e-5 / other, 1e-9 / other))
        lines.append(line("add", "forward", dtype, ranks, 2e-6 / other, 1e-9 / other))
        lines.append(line("all_reduce", "", dtype, ranks, 1e-3 / other, 1e-9 / other))
    for operation in ("softmax", "cross_entropy"):
        for variant in ("forward", "backward"):
            tables.append(
                grid(operation, variant, "fp32", ranks, {"rows": (8.0, 64.0), "columns": (8.0, 64.0)}, 3e-9 / other)
            )
    tables.append(grid("triad", "", "fp32", ranks, {"byte": (1e6, 1e8)}, 1 / (other * memory)))
    lines.append(line("calls", "", "fp32", ranks, 0.0, 3e-6 / other))
    lines.append(line("adam", "", "fp32", ranks, 1e-5 / other, 1e-9 / other))
    whole_profile = sparse_profile(ranks=ranks, fingerprint=fingerprint)
    return msgspec.structs.replace(
        whole_profile,
        tables=[table for table in tables if table.subject.operation != left_out],
        lines=[each for each in lines if each.subject.operation != left_out],
    )


def step_seconds(found: RunMachine, run: ReferenceRun, layout: Layout) -> float:
    step = run_prediction(Workload(run.architecture, run.recipe, layout), found.machine).step
    assert step is not None
    return step.total_seconds


def seconds_of(name: str, profile: Profile, *, network: float = NETWORK) -> float:
    run = reference_run(name)
    layout = run.recorded_layout
    assert layout is not None
    found = profiled_machine(profile, run, layout, network_bytes_per_second=network)
    return step_seconds(found, run, layout)


@pytest.mark.parametrize("name", ["bloom-176b", "gpt2-124m", "gpt-neox-20b"])
def test_a_machine_twice_as_fast_in_all_that_is_measured_takes_half_the_time(name: str) -> None:
    once = seconds_of(name, measured())
    twice = seconds_of(name, measured(faster=2.0), network=2 * NETWORK)
    assert twice == pytest.approx(once / 2, rel=1e-9)  # rounding of sums alone


@given(st.floats(1e8, 1e13), st.floats(1e9, 1e13), st.floats(1.0, 100.0), st.floats(0.05, 1.0))
def test_faster_products_or_memory_never_make_a_step_slower(
    memory: float, flop: float, factor: float, small: float
) -> None:
    slow = seconds_of("gpt2-124m", measured(flop_per_second=flop, small=small))
    assert seconds_of("gpt2-124m", measured(flop_per_second=flop * factor, small=small)) <= slow * (1 + 1e-12)
    slow = seconds_of("bloom-176b", measured(memory=memory))
    assert seconds_of("bloom-176b", measured(memory=memory * factor)) <= slow * (1 + 1e-12)


def test_with_all_else_for_nothing_a_step_takes_its_flop_over_the_measured_rate() -> None:
    run = reference_run("gpt2-124m")
    layout = Layout(micro_batch=1)
    found = profiled_machine(measured(ranks=1, beside_products=1e9, small=1.0), run, layout)
    flop = run_prediction(Workload(run.architecture, run.recipe, layout), found.machine).hardware_flop
    assert flop is not None
    assert step_seconds(found, run, layout) == pytest.approx(flop / 1e11, rel=1e-6)  # the rest: a billionth, 1000 times


def test_a_ring_over_the_measured_group_takes_the_measured_seconds() -> None:
    from suite.predict.analytic.collective_time import all_reduce_seconds, group

    for ranks in (2, 8):
        machine = profiled_machine(measured(ranks=ranks), reference_run("gpt2-124m"), Layout()).machine
        assert machine is not None
        inside = group(machine, ranks=ranks, ranks_in_node=ranks)
        # a message large enough for rings on both numbers of ranks
        assert all_reduce_seconds(inside, payload_bytes=1e9, messages=1) == pytest.approx(1e-3 + 1.0, rel=1e-9)


def test_the_peak_is_that_of_the_data_sheet_where_the_catalog_knows_the_gpu() -> None:
    hardware = {"gpus": "NVIDIA H200, NVIDIA H200", "memory": "2000 GiB"}
    on_gpu = Fingerprint(node="89ef", device="cuda", hardware=hardware, software={})
    run = reference_run("gpt2-124m")
    known = profiled_machine(measured(fingerprint=on_gpu, flop_per_second=6e14), run, Layout()).machine
    assert known is not None
    assert known.peak_flop_per_second == accelerator("h200").peak_flop_per_second["bf16"]
    assert known.memory_bytes == usable_memory(accelerator("h200").board).usable
    assert not known.peak_is_measured
    here = profiled_machine(measured(), run, Layout()).machine
    assert here is not None
    assert here.peak_is_measured
    assert here.peak_flop_per_second == pytest.approx(1e11, rel=1e-9)
    assert here.memory_bytes == 12 * 2**30
    hardware = {"gpus": "NVIDIA Unheard", "memory": "2000 GiB"}
    unknown = Fingerprint(node="89ef", device="cuda", hardware=hardware, software={})
    with pytest.raises(Exception, match="memory of an accelerator is not known; got NVIDIA Unheard"):
        profiled_machine(measured(fingerprint=unknown), run, Layout())


def stored(tmp_path: Path, profile: Profile) -> str:
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "profile.json"
    path.write_bytes(encode(profile))
    return str(path)


def objects(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    code = main(["predict", *arguments, "--json"])
    entries = [json.loads(row) for row in capsys.readouterr().out.splitlines()]
    too_large = any("does not fit" in row["why"] for entry in entries for row in entry["figures"])
    assert code == (1 if too_large else 0)
    return entries


def test_every_run_has_a_time_and_no_known_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path, measured())
    names = [name for name in run_names() if reference_run(name).recipe.product_format is ProductFormat.NONE]
    assert len(names) == len(run_names()) - 4
    for entry in objects(capsys, *names, "--machine", path, "--network", "10"):
        run = reference_run(entry["run"])
        timed = [row for row in entry["figures"] if row["quantity"] == "step_seconds" and row["left"]]
        assert bool(timed) == (run.recorded_layout is None or run.recorded_layout.offload == "none")
        if timed:
            assert entry["step_seconds_uncertainty"] is None
            (share,) = (row for row in entry["figures"] if row["quantity"] == "mfu" and row["term"] is None)
            assert share["left"] > 0
            # fused attention computes half of the square that conventions count, and so may exceed the peak
            assert share["left"] < 1 or (run.recorded_layout is None or run.recorded_layout.fused_attention)
            assert "of the highest matrix rate measured" in share["convention"]


def test_products_that_no_profile_has_are_refused_by_name_and_16_bit_ones_in_their_place_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["predict", "deepseek-v3", "--machine", stored(tmp_path, measured()), "--network", "10"]
    assert main(asked) == 2
    assert "--machine: products in recipe.product_format are not calibrated; got fp8-blockwise, allowed: none" in (
        capsys.readouterr().err
    )
    assert main([*asked, "--gemm-dtype", "none"]) == 1  # does not fit


def test_whose_profile_it_is_and_what_is_assumed_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path, measured())
    assert main(["predict", "bloom-176b", "--machine", path, "--all"]) == 1
    reported = " ".join(capsys.readouterr().out.split())
    assert "bloom-176b on 384 ranks of 0123abcd" in reported
    assert "machine profile of node 0123abcd, measured 1970-01-01 00:16 UTC: A, 2 cores" in reported
    assert "the error to expect is unknown: no published table holds for this machine" in reported
    assert "400 Gbit/s out of each node, as recorded for the run; a profile has no network" in reported
    assert "does not fit" in reported
    assert main(["predict", "gpt2-124m", "--machine", path, "--all"]) == 1
    assert "are needed for the step time, but neither recorded nor in a machine profile" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_profile_that_cannot_stand_for_a_machine_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = measured()
    whole = encode(profile)
    conditions = msgspec.structs.replace(profile.conditions, others_share=0.4, steal_share=0.02)
    disturbed = encode(msgspec.structs.replace(profile, conditions=conditions))
    partial = encode(msgspec.structs.replace(profile, partial=True))
    cases: list[tuple[bytes | None, list[str]]] = [
        (None, ["cannot read the machine profile"]),
        (whole[:-100], ["truncated perhaps"]),
        (whole.replace(b'"ranks":2,"threads"', b'"ranks":3,"threads"'), ["was changed after it was measured"]),
        (whole.replace(f'"schema":"{SCHEMA}"'.encode(), b'"schema":"1000.0"'), ["unknown schema version"]),
        (encode(measured(left_out="all_reduce")), ["no measurement of all_reduce bf16 2 ranks"]),
        (encode(measured(left_out="layer_norm")), ["no measurement of layer_norm forward bf16 2 ranks"]),
        (disturbed, ["json: a disturbed machine profile", "other processes took 40% and other guests 2%"]),
        (disturbed, ["allowed: at most 10% together"]),
        (partial, ["json: a partial machine profile", "calibrate measures everything"]),
    ]
    for number, (content, words) in enumerate(cases):
        path = tmp_path / f"{number}.json"
        if content is not None:
            assert content != whole
            path.write_bytes(content)
        assert main(["predict", "bloom-176b", "--machine", str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert [word for word in words if word not in captured.err] == []
        assert captured.err.count("\n") == 1


def test_a_profile_goes_neither_with_another_accelerator_nor_with_a_miniature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored(tmp_path, measured())
    assert main(["predict", "bloom-176b", "--machine", path, "--on", "h100"]) == 2
    assert "excludes --on" in capsys.readouterr().err
    assert main(["predict", "bloom-mini", "--machine", path]) == 2
    assert "--machine with the miniature bloom-mini" in capsys.readouterr().err


H200 = Fingerprint(node="89ef", device="cuda", hardware={"gpus": "NVIDIA H200", "memory": "2000 GiB"}, software={})


@pytest.mark.parametrize("fingerprint", [CPU, H200], ids=["cpu", "cuda"])
def test_one_rank_has_no_link_and_says_so_instead_of_what_a_link_limits(
    fingerprint: Fingerprint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, paired = (stored(tmp_path / str(ranks), measured(ranks=ranks, fingerprint=fingerprint)) for ranks in (1, 2))
    whole = [run for run in map(reference_run, run_names()) if run.recorded_layout and not missing_keys(run.recipe)]
    runs = [run.name for run in whole if run.recipe.product_format is ProductFormat.NONE]
    asked = (*runs, "--network", "10", "--choices")
    for one, two in zip(
        objects(capsys, *asked, "--machine", alone), objects(capsys, *asked, "--machine", paired), strict=True
    ):
        values, others = (
            {(row["topic"], row["name"]): row["value"] for row in entry["choices"]} for entry in (one, two)
        )
        assert not any(value in (0, None) for value in values.values())
        reported = {key for key, value in values.items() if isinstance(value, str) and "no link" in value}
        assert reported == {
            ("tensor parallelism", "largest useful size"),
            ("communication", "a rank's gradients over its link, one way"),
        }
        gone = {("tensor parallelism", "usable inside a node"), ("tensor parallelism", "machine's flop per byte")}
        expected = {key for key in others if key[0] != "pipeline"} - gone  # named by the accelerators of a node
        assert {key for key in values if key[0] != "pipeline"} == expected
    too_large = 1 if fingerprint is CPU else 0  # 64 samples at once do not fit into the CPU's memory
    assert main(["predict", "gpt2-124m", "--layout", "dp1", "--machine", alone, "--choices"]) == too_large
    assert "this machine has no link between accelerators" in " ".join(capsys.readouterr().out.split())
