"""Steps on paper: from counts of a step without and with an optimization, and recorded milliseconds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from benchmarks import expected_steps
from benchmarks.expected_steps import (
    LIKE_SLICE,
    RECORDED,
    Counts,
    OnProfile,
    RecordedStep,
    SavedMilliseconds,
    fp8_share_of_gemms,
    main,
    saving,
    scaled,
    slice_on_paper,
    sliced_step,
    step_milliseconds,
    utilisation,
)
from benchmarks.simulated_step import CountedStep, HostSeconds, LaunchKind, LoggedStep
from reference_runs.catalog import reference_run
from reference_runs.run import Workload
from suite.first_hour.measurements import expected_steps as written_down
from suite.job.options import Optimization
from suite.machine.packages import PACKAGES, Package
from suite.paths import ROOT
from suite.predict.simulation.optimizations import RULES, OptimizationRule

GRAPH = "micro-batch-graph"
ALONE = {name: name for name in ("none", "across-blocks", "triton", GRAPH)}
SETS = ALONE | {"all": f"across-blocks,epilogues,{GRAPH}"}


def counts(*, layer_gigabytes: float, launches: int, update_gigabytes: float = 6.0) -> Counts:
    """Counts of a run of 12 layers, with 5 GB beside them and 4 launches in the update."""

    def counted(layers: int) -> CountedStep:
        moved = 2 * (5 + layers * layer_gigabytes) + update_gigabytes
        return CountedStep(
            micro_batches=2,
            graphs=2,
            graph_breaks=0,
            compiled_bytes=round(1e9 * moved) - 7,
            operator_bytes=7,
            update_bytes=round(1e9 * update_gigabytes),
            step=LoggedStep(
                launches={LaunchKind.COMPILED: layers * launches // 6 + 4},
                products=[(3, 5, 7, 4 * layers), (2, 3, 4, 2)],
                waits=[],
            ),
            update=LoggedStep(launches={LaunchKind.COMPILED: 4}, products=[], waits=[]),
        )

    hosts = [HostSeconds(micro_batches=2, passes=[0.8 * s, s, 2 * s], update=[0.001] * 3) for s in (0.06, 0.1)]
    return Counts(12, counted(2), counted(4), *hosts)


def test_bytes_and_launches_are_those_of_a_micro_batch_without_the_update() -> None:
    own = counts(layer_gigabytes=5.0, launches=600)
    assert own.bytes == pytest.approx(65e9)
    assert own.layer_bytes == pytest.approx(5e9)
    assert own.launches() == own.launches(LaunchKind.COMPILED) == 600
    assert own.gemm_flop == 12 * 2 * 210 + 48  # two of 3 x 5 x 7 a layer, and one of 2 x 3 x 4
    assert expected_steps.host_words(own) == "130 (80% to 200%)"  # 50 of 4 layers, and 10 of each further one


def test_each_part_shrinks_as_what_it_is_bound_by_and_gemms_do_not() -> None:
    recorded = RecordedStep(gemms=70.0, attention=20.0, others=39.0, idle=2.0, update=12.0, between_steps=1.0)
    plain = counts(layer_gigabytes=5.0, launches=600)
    assert step_milliseconds(recorded, saving(recorded, plain, plain), 8) == pytest.approx(8 * 131 + 13)
    fewer = counts(layer_gigabytes=4.0, launches=300, update_gigabytes=3.0)
    saved = saving(recorded, plain, fewer)
    assert saved == pytest.approx(SavedMilliseconds(by_bytes=39 * 12 / 65, by_launches=1.0, in_update=6.0))
    assert step_milliseconds(recorded, saved, 8) == pytest.approx(8 * (130 - 7.2) + 7)
    assert saved.words(8) == "bytes of other kernels: +57.6 ms saved"
    assert SavedMilliseconds(0.0, 0.0, 6.0).words(8) == "bytes of the update: +6.0 ms saved"
    assert SavedMilliseconds(0.001, 0.0, 0.0).words(8) == "nothing that is counted changes"


def test_measured_steps_are_those_of_the_records() -> None:
    assert expected_steps.recorded_steps() == {
        ("gpt2-124m", "none"): 1037.7,
        ("gpt2-124m", "triton"): 1021.0,
        ("gpt2-1558m-b64", "none"): 1405.5,
    }


def test_recorded_parts_add_up_to_recorded_steps_and_their_mfu_is_the_recorded_one() -> None:
    nothing = SavedMilliseconds(0.0, 0.0, 0.0)
    for run, micro_batches, step, mfu in (("gpt2-124m", 8, 1037.7, 0.4364), ("gpt2-1558m", 4, 1405.5, 0.4842)):
        whole = step_milliseconds(RECORDED[run], nothing, micro_batches)
        assert whole == pytest.approx(step)
        assert utilisation(run, whole, micro_batches) == pytest.approx(mfu, abs=1e-4)
    with_once = scaled(RecordedStep(1.0, 1.0, 1.0, 1.0, 2.0, 3.0), step=45.0, micro_batches=4)
    assert with_once[:4] == pytest.approx([2.5] * 4)


def test_kept_counts_become_tables_and_what_first_hour_expects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected_steps, "hows", lambda _: SETS)
    for how, own in (
        ("none", counts(layer_gigabytes=5.0, launches=600)),
        ("across-blocks", counts(layer_gigabytes=4.0, launches=600)),
        ("across-blocks+epilogues", counts(layer_gigabytes=3.0, launches=600)),
        ("triton", counts(layer_gigabytes=4.5, launches=600)),
    ):
        path = tmp_path / f"gpt2-124m__{how}.json"
        lines = (own.fewer, own.host_of_fewer, own.more, own.host_of_more)
        path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
    assert main(["--counts", str(tmp_path), "--runs", "gpt2-124m"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if " | " in line][1:]
    assert [row[0] for row in rows] == [f"| {how}" for how in SETS]
    file = tmp_path / "expected.toml"
    kept = '["gpt2-1558m plain"]\nmilliseconds = 21933.0\nbound_by = "GEMMs"\n'
    file.write_text(kept)
    assert main(["--counts", str(tmp_path), "--runs", "gpt2-124m", "--toml", str(file)]) == 0
    written = tomllib.loads(file.read_text())
    counted = ("gpt2-124m plain", "gpt2-124m all", "gpt2-124m across-blocks", f"gpt2-124m {GRAPH}", "gpt2-124m triton")
    assert [*written] == [*counted, "gpt2-1558m plain"]  # in the order of first-hour's parts
    assert file.read_text().endswith(kept)
    gaps = 8 * RECORDED["gpt2-124m"].idle
    bound = f"time between kernels: 0 to +{gaps:.1f} ms saved"
    assert written[f"gpt2-124m {GRAPH}"] == {"milliseconds": 1037.7, "bound_by": bound}
    (steps,) = [row[9] for row in rows if row[0] == f"| {GRAPH}"]
    assert steps == f"{1037.7 - gaps:,.0f} to 1,038"
    assert written["gpt2-124m triton"]["milliseconds"] == 1021.0  # it was measured
    assert written["gpt2-124m across-blocks"]["milliseconds"] < written["gpt2-124m plain"]["milliseconds"] == 1037.7


def test_a_slice_with_the_work_of_the_run_whose_rates_it_has_takes_as_long_as_that_was_recorded_to_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = reference_run(LIKE_SLICE)
    workload = Workload(run.architecture, run.recipe, run.layout)
    monkeypatch.setattr(expected_steps, "slice_workload", lambda: workload)
    own = counts(layer_gigabytes=5.0, launches=600)
    recorded = RECORDED[LIKE_SLICE]
    assert sliced_step(own, own) == pytest.approx(recorded._replace(between_steps=0.0))
    other = counts(layer_gigabytes=10.0, launches=300, update_gigabytes=3.0)
    scaled_ = sliced_step(other, own)
    assert scaled_.others == pytest.approx(recorded.others * 125 / 65)
    assert (scaled_.idle, scaled_.update) == pytest.approx((recorded.idle / 2, recorded.update / 2))
    words = slice_on_paper(own, own).bound_by
    assert words.startswith("GEMMs 6")
    assert words.endswith("; torchtitan's whole run: 33.7% eager, 39.0% compiled")
    # heads of 128 in place of 64: twice the flop, at 1 / 0.76 of the rate
    wide = msgspec.structs.replace(run.architecture, head_dim=128)
    monkeypatch.setattr(expected_steps, "slice_workload", lambda: workload._replace(architecture=wide))
    assert sliced_step(own, own).attention == pytest.approx(1.5 * recorded.attention, rel=0.01)


def test_fp8_gemms_take_more_than_half_of_the_16_bit_ones_as_the_head_stays_in_16_bits() -> None:
    assert 0.5 < fp8_share_of_gemms("gpt2-1558m") < 0.9


def test_a_step_on_the_profile_is_shown_with_and_without_the_bytes_that_arithmetic_may_hide() -> None:
    assert OnProfile(1021.4, 27.1, 0.0).words == "1,021 (994)"
    assert OnProfile(1021.4, 0.0, 0.0).words == "1,021"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--runs", "nosuch"], "error: --runs: unknown name; got 'nosuch', allowed: gpt2-124m, gpt2-1558m, .*"),
        (["--only", "nosuch"], "error: --only: unknown name; got 'nosuch', allowed: none, epilogues, tuned-gemms, .*"),
        ([], "error: --counts: no directory: .*; got .*/a_file/x"),
    ],
)
def test_bad_input_is_a_line_and_exit_code_2(
    options: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_file").touch()
    assert main(["--counts", str(tmp_path / "a_file" / "x"), *options]) == 2
    assert re.fullmatch(line, capsys.readouterr().err.splitlines()[-1])


def rows_of(document: str) -> list[dict[str, str]]:
    """Every row of every table of a Markdown document, by the titles of its columns."""
    found: list[dict[str, str]] = []
    titles: list[str] = []
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            titles = []
        elif not titles:
            titles = cells
        elif not cells[1].startswith(("---", ":---")):
            found.append(dict(zip(titles, cells, strict=True)))
    return found


DOCUMENT = (ROOT / "docs" / "mfu_design.md").read_text(encoding="utf-8")


def test_the_documents_steps_on_the_profile_are_computed_and_what_is_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the packages of the document: the profile's times do not depend on them."""
    absent = OptimizationRule(lambda _: "", package="absent_kernels")
    monkeypatch.setitem(PACKAGES, "absent_kernels", Package("absent_kernels", "absent-kernels", "nothing"))
    monkeypatch.setattr(expected_steps, "RULES", RULES | {Optimization.PACKED_GRADIENTS: absent})
    without = {Optimization.FLASH_ATTENTION_3, Optimization.MICRO_BATCH_GRAPH}
    names = [name.value for name in expected_steps.possible("gpt2-124m") if name not in without]
    monkeypatch.setattr(expected_steps, "all_together", lambda _: names)
    assert main(["--profile"]) == 0
    printed = capsys.readouterr()
    assert "left out: packed-gradients: absent-kernels is not installed" in printed.err.splitlines()
    _, _, section = DOCUMENT.partition("### By the recorded profile")
    assert rows_of(printed.out) == rows_of(section.partition("###")[0])


def test_what_first_hour_expects_are_the_documents_steps() -> None:
    """The measured milliseconds where there are some, else the slower end of a range; rounded to 0.1 ms, and to 1."""
    _, _, tables = DOCUMENT.partition("### gpt2-124m: 8 micro-batches a step")
    found = {}
    for row in rows_of(tables.partition("### By the recorded profile")[0]):
        for name in ("gpt2-124m", "gpt2-1558m-b64", "gpt2-1558m"):
            if words := row.get(f"{name}, ms"):
                how = {"none": "plain", "default": ""}.get(row["optimizations"], row["optimizations"])
                found[f"{name} {how}".strip()] = float(words.rstrip(")").split()[-1].replace(",", ""))
    expected = {name: step.milliseconds for name, step in written_down().items()}
    sliced = expected.pop(f"{expected_steps.SLICE} slice")
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=0, abs=0.5 + 0.05)
    assert f"A step is {sliced:.0f} ms" in DOCUMENT


def test_what_is_written_down_is_ordered_as_what_each_saves() -> None:
    """All together and the default save more than one alone, FP8 more than nothing; of CUDA graphs nothing is sure."""
    steps = {name: step.milliseconds for name, step in written_down().items()}
    assert steps["gpt2-124m all"] < steps["gpt2-124m"] < steps["gpt2-124m epilogues"] < steps["gpt2-124m plain"]
    assert steps["gpt2-1558m-b64 fp8-current"] < steps["gpt2-1558m-b64 plain"]
    assert steps["gpt2-124m micro-batch-graph"] == steps["gpt2-124m plain"]
    assert " 0 to +" in written_down()["gpt2-124m micro-batch-graph"].bound_by
    assert "MFU" in written_down()["llama3.1-8b slice"].bound_by
