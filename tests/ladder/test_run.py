"""The ladder as data, what it judges, and a whole run on a machine that is made up."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import accumulation
from reference_runs.layout import Layout
from reference_runs.run import Precision, Recipe
from suite.__main__ import main
from suite.commands import exit_codes
from suite.commands.ladder import EXIT_CODES
from suite.job.options import StepOptions, Update
from suite.ladder import runner as runner
from suite.ladder.judge import Gain, Interaction, Mark, gain_check, loss_check, noise, peak_check, repeats_check
from suite.ladder.measurement import measured
from suite.ladder.plan import Target, checkpoint_layers, planned, refusal, target_of, target_that_fits, why_too_large
from suite.ladder.result import DIRECTORY, LadderResult, failures, verdict
from suite.ladder.rung import (
    BASE,
    MOST_DIVISOR,
    RUNGS,
    Need,
    Promise,
    RungSetting,
    Track,
    rounding_of,
    rungs_on,
    setting_above,
    setting_of,
    stands_on,
)
from suite.machine.half_precision import Kernels
from suite.metrics.comparison import compare
from suite.metrics.figures import Figure, Quantity
from suite.predict.analytic.activations import best_checkpoint_layers
from suite.predict.executed_run.figures import expected_figures
from suite.predict.simulation.step_memory import executed_peak_bytes
from suite.report.html.setups import remembered
from suite.report.html.stored_results import ladders
from suite.report.plots.ladder import write_plot
from suite.report.terminal.ladder import as_json, print_ladder
from suite.report.terminal.tables import console
from suite.reproduce.plan import job_for
from suite.reproduce.reproduce import LaunchResult
from suite.reproduce.supported import check_executable, check_executable_layout
from tests.support.ladder_machine import (
    CPU,
    NAMES,
    TEXTS,
    Machine,
    exact_of,
    ladder_of,
    of_track,
    peak_of,
    results_of,
    rung_measurement,
    said,
)
from tests.support.launches import CORPUS

GIB = 2**30


def test_every_rung_changes_fields_of_the_setting_and_its_track_begins_with_a_baseline() -> None:
    assert len(NAMES) == len(RUNGS)
    for track in Track:
        rungs = of_track(track)
        assert rungs[0].is_base
        assert not any(rung.is_base for rung in rungs[1:])
    for rung in RUNGS:
        assert set(rung.changes) <= set(RungSetting.__struct_fields__)
        assert setting_of(rung.track, [rung]) != BASE[rung.track] or rung.is_base or rung.name == "recompute-sqrt"
        assert (rung.promise is Promise.WITHIN) == (rung.bound > 0)


def test_a_rung_stands_on_the_applicable_main_rungs_below_it() -> None:
    applicable = [rung for rung in RUNGS if rung.name != "offload-activations"]
    below = [rung.name for rung in stands_on(NAMES["bf16"], applicable)]
    assert below[-1] == "optimizer-fused"
    assert not {"optimizer-frugal", "fp16"} & {*below}
    assert stands_on(NAMES["memory-baseline"], applicable) == []
    for side in ("cpp-operator", "fused-attention"):
        assert [rung.name for rung in stands_on(NAMES[side], RUNGS)][-1] == "no-sync"
    tops = {device: stands_on(NAMES["compile"], rungs_on(device))[-1].name for device in ("cpu", "cuda")}
    assert tops == {"cpu": "no-sync", "cuda": "fused-attention"}  # fused attention is a side rung on a processor
    assert rungs_on("cpu") == list(RUNGS)


def test_the_peak_of_what_is_offloaded_is_not_predicted_and_nothing_stands_on_activations() -> None:
    """Nothing is said of their peak, rather than the peak that there would be without offloading."""
    rung = NAMES["offload-activations"]
    assert rung.seconds_unknown
    for above in of_track(Track.MEMORY):
        setting = setting_above(above, RUNGS)
        plan = planned(msgspec.structs.replace(CPU, device="cuda"), setting, "", TEXTS)
        assert setting.offloads_activations == (above is rung)
        expected = expected_figures(job_for(plan, CORPUS, ""), kernels=Kernels(cuda=True), cores=2)
        quantities = {figure.quantity for figure in expected}
        assert Quantity.ACTIVATION_BYTES in quantities
        assert (Quantity.PEAK_BYTES in quantities) == (above is not rung and not setting.offloads_state)


def test_what_a_machine_lacks_is_refused_with_a_reason_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    needing = {rung.name for rung in RUNGS if {Need.CUDA, Need.TRITON} & set(rung.needs)}
    refused = {rung.name for rung in RUNGS if refusal(rung, CPU)}
    assert needing <= refused <= needing | {"cpp-operator", "ddp-hosts"}
    assert "no CUDA device" in refusal(NAMES["pinned"], CPU)
    assert not refusal(NAMES["pinned"], msgspec.structs.replace(CPU, device="cuda"))
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert "compiler" in refusal(NAMES["cpp-operator"], CPU)
    for gpus, too_many in ((1, {"fsdp-2", "fsdp-4", "ddp"}), (2, {"fsdp-4"}), (4, set()), (None, set())):
        here = msgspec.structs.replace(CPU, device="cuda", gpus=gpus, host_names=("a", "b"))
        assert {rung.name for rung in RUNGS if "GPUs needed" in refusal(rung, here)} == too_many
    alone = msgspec.structs.replace(CPU, device="cuda", gpus=1)
    assert refusal(NAMES["ddp"], alone) == "2 GPUs needed, 1 here"
    assert refusal(NAMES["ddp-hosts"], alone)


def test_the_square_root_of_layers_lowers_the_peak_at_the_loss_and_not_that_of_the_layers() -> None:
    """The numbers of docs/ladder.md; the layers' own optimum is a layer a group in both runs."""
    for name, device, peaks in (
        ("gpt2-mini", "cpu", {1: 102.1, 2: 101.7, 4: 101.5}),
        ("gpt2-124m", "cuda", {1: 7019.5, 3: 6827.5, 12: 12244.2}),
    ):
        target = target_of(name, device=device, seed=1)
        rung = NAMES["recompute-sqrt"]
        plan = planned(target, setting_above(rung, RUNGS), "", TEXTS)
        assert plan.layout.checkpoint_layers == checkpoint_layers(target.architecture) in peaks
        assert best_checkpoint_layers(plan.workload, stage=0, micro_batches=1) == 1
        for layers, peak in peaks.items():
            layout = msgspec.structs.replace(plan.layout, checkpoint_layers=layers)
            options = StepOptions(kernels=Kernels(cuda=device == "cuda"), training_options=plan.training_options)
            found = executed_peak_bytes(plan.workload._replace(layout=layout), options, stage=0, replica=0)
            assert found / 2**20 == pytest.approx(peak, abs=0.05)


def test_two_hosts_have_a_rank_each_whatever_stands_below() -> None:
    for below in (["offline"], ["offline", "ddp"]):
        setting = setting_of(Track.SPEED, [NAMES[name] for name in [*below, "ddp-hosts"]])
        assert (setting.hosts, setting.data_parallel, setting.micro_batch) == (2, 2, setting.samples // 2)


def test_groups_of_layers_are_the_square_root_rounded() -> None:
    layers = {n: checkpoint_layers(msgspec.structs.replace(CPU.architecture, layers=n)) for n in (1, 2, 4, 12, 48)}
    assert layers == {1: 1, 2: 1, 4: 2, 12: 3, 48: 7}


def test_a_gain_is_judged_by_its_sign_and_order_of_size_and_on_a_gpu_to_15_percent() -> None:
    cases: list[tuple[float | None, float, float, Mark, str]] = [
        (10.0, 9.0, 1.0, Mark.PASS, "0.90"),
        (10.0, 31.0, 0.1, Mark.PASS, "3.10"),
        (10.0, 33.0, 0.1, Mark.FAIL, "3.30"),
        (10.0, -9.0, 1.0, Mark.FAIL, "lost"),
        (10.0, 0.5, 1.0, Mark.FAIL, "lost"),
        (10.0, 2.0, 0.1, Mark.FAIL, "lost"),
        (-10.0, 9.0, 1.0, Mark.FAIL, "the opposite of the predicted"),
        (-10.0, -9.0, 1.0, Mark.PASS, "0.90"),
        (0.0, 9.0, 1.0, Mark.FAIL, "predicted none"),
        (0.5, -0.5, 1.0, Mark.SHOWN, "noise"),
        (1.2, 5.0, 2.0, Mark.PASS, "4.17"),
        (10.0, 6.0, 7.0, Mark.SHOWN, "0.60 of the predicted, within noise"),
        (10.0, 0.5, 7.0, Mark.SHOWN, "0.05 of the predicted, within noise"),
        (10.0, -0.5, 7.0, Mark.SHOWN, "-0.05 of the predicted, within noise"),
        (-10.0, 0.5, 7.0, Mark.SHOWN, "-0.05 of the predicted, within noise"),
        (10.0, -4.0, 7.0, Mark.FAIL, "lost"),
        (-10.0, 4.0, 7.0, Mark.FAIL, "the opposite of the predicted"),
        (-10.0, 8.0, 7.0, Mark.FAIL, "the opposite of the predicted"),
        (0.5, -9.0, 1.0, Mark.FAIL, "predicted none"),
        (0.5, 9.0, 1.0, Mark.FAIL, "predicted none"),
        (-10.0, -0.5, 1.0, Mark.FAIL, "0.05"),
        (None, 5.0, 2.0, Mark.SHOWN, "not predicted: no reason"),
    ]
    wrong = []
    for predicted, reached, within, mark, words in cases:
        one = Gain(predicted=predicted, measured=reached, noise=within)
        check = gain_check(one, gpu=False, ablated=False, unknown="no reason")
        if check.mark is not mark or words not in check.says:
            wrong.append((one, check))
    assert wrong == []
    marks = [
        gain_check(Gain(predicted=10.0, measured=value, noise=0.01), gpu=True, ablated=False).mark
        for value in (8.4, 8.6, 11.4, 11.6)
    ]
    assert marks == [Mark.FAIL, Mark.PASS, Mark.PASS, Mark.FAIL]


def test_a_peak_is_judged_to_5_percent() -> None:
    marks = [peak_check(said(peak=peak), rung_measurement(peak=1000)).mark for peak in (949, 951, 1049, 1051)]
    assert marks == [Mark.FAIL, Mark.PASS, Mark.PASS, Mark.FAIL]


def test_losses_that_promise_equality_may_not_differ_in_a_bit() -> None:
    equal, within, changed = NAMES["recompute-full"], NAMES["accumulate"], NAMES["batch"]
    below, near, far = (
        rung_measurement(losses=[2.0, last]) for last in (1.0, 1.0 + within.bound / 2, 1.0 + 2 * within.bound)
    )
    assert loss_check(equal, below, below).mark is Mark.PASS
    assert loss_check(equal, near, below).mark is Mark.FAIL
    assert loss_check(within, near, below).mark is Mark.PASS
    assert loss_check(within, far, below).mark is Mark.FAIL
    assert loss_check(changed, far, below).mark is Mark.SHOWN


def test_on_a_gpu_losses_may_differ_by_what_sums_in_any_order_do() -> None:
    """Training is not deterministic there: a rung that changes nothing has other bits, and so have its launches."""
    fp32, bf16 = rounding_of(Precision.FP32), rounding_of(Precision.BF16)
    below, near, far = (rung_measurement(losses=[2.0, last]) for last in (1.0, 1.0 + fp32 / 2, 1.0 + 2 * fp32))
    equal = NAMES["recompute-full"]
    assert [loss_check(equal, one, below, rounding=fp32).mark for one in (below, near, far)] == [
        Mark.PASS,
        Mark.PASS,
        Mark.FAIL,
    ]
    assert loss_check(equal, far, below, rounding=bf16).mark is Mark.PASS
    unlike = msgspec.structs.replace(below, repeats_differ=True)
    assert [repeats_check(unlike, gpu=gpu).mark for gpu in (False, True)] == [Mark.FAIL, Mark.SHOWN]
    assert repeats_check(below, gpu=False) is None


def test_a_rung_s_cpu_slowdown_is_the_median_over_its_launches_and_changes_no_noise() -> None:
    plan, machine = planned(CPU, BASE[Track.SPEED], "rung", TEXTS), Machine()

    def launch(at_pace: float | None) -> LaunchResult:
        figures = [Figure(quantity=Quantity.STEP_SECONDS, value=2.0)]
        if at_pace is not None:
            figures.append(Figure(quantity=Quantity.STEP_SECONDS_AT_CPU_SPEED, value=at_pace))
        rows = compare(figures, figures, left_name="predicted", right_name="measured", judge=True)
        return msgspec.structs.replace(machine.reproduce(plan), rows=rows)

    paced = measured(plan, [launch(3.0), launch(9.0), launch(4.0)])
    unknown = measured(plan, [launch(None), launch(None), launch(None)])
    assert (paced.cpu_slowdown, unknown.cpu_slowdown) == (2.0, None)
    assert noise(Track.SPEED, [paced, unknown], gpu=False) == noise(Track.SPEED, [unknown, unknown], gpu=False)


def test_gains_within_noise_say_nothing_and_others_interact_or_add_up() -> None:
    for in_track, at_top, within, says in (
        (10, 11, 1, "adds up"),
        (10, 12, 1, "interacts: worth more at the top"),
        (10, 8, 1, "interacts: worth less at the top"),
        (6, -18, 85, "within noise"),
        (-18, 6, 18, "within noise"),
        (-18, 6, 17, "interacts: worth more at the top"),
        (152, 80, 100, "adds up"),
    ):
        found = Interaction(rung="a", in_track=in_track, at_top=at_top, noise=within)
        assert found.says == says
        assert (found.adds_up, found.within_noise) == (says == "adds up", says == "within noise")


def test_the_naive_script_keeps_gradients_through_the_forward_pass() -> None:
    """With one micro-batch a step the peak has 4 bytes a parameter more; with several they are there anyway."""
    base, freed = (
        planned(CPU, msgspec.structs.replace(BASE[Track.MEMORY], keeps_gradients=keeps), "", TEXTS)
        for keeps in (True, False)
    )
    peaks = [peak_of(plan) for plan in (base, freed)]
    gradients = 4 * exact_of(base, Quantity.PARAMETERS)
    assert peaks[0] - peaks[1] == gradients
    several = [
        msgspec.structs.replace(plan, layout=msgspec.structs.replace(plan.layout, micro_batch=8))
        for plan in (base, freed)
    ]
    assert peak_of(several[0]) == peak_of(several[1])


def test_adafactor_keeps_rows_and_columns_in_place_of_moments() -> None:
    adam, frugal = (planned(CPU, RungSetting(update=kind), "", TEXTS) for kind in (Update.FUSED, Update.ADAFACTOR))
    shape = CPU.architecture
    d, f, v, t = shape.hidden, shape.ffn_hidden, shape.padded_vocabulary, shape.sequence
    matrices = (v + d) + (t + d) + shape.layers * ((3 * d + d) + (d + d) + (f + d) + (d + f))
    vectors = 2 * d + shape.layers * (2 * d + 2 * d + 3 * d + d + f + d)
    tensors = 4 + shape.layers * 12
    assert exact_of(frugal, Quantity.OPTIMIZER_BYTES) == 4 * (matrices + vectors + tensors)
    assert exact_of(adam, Quantity.OPTIMIZER_BYTES) == 8 * exact_of(adam, Quantity.PARAMETERS) + 4 * tensors


def test_a_rung_is_run_with_what_it_is_compared_with_and_the_baseline(machine: Machine) -> None:
    outcome = ladder_of(["compile"])
    assert machine.launched == ["speed/speed-baseline", "speed/no-sync", "speed/compile"]
    one = results_of(outcome)["compile"]
    assert one.below == "no-sync"
    assert one.gain is not None
    tokens = 32 * CPU.architecture.sequence
    assert one.gain.measured == pytest.approx(0.16 / tokens)
    base = 0.1 + 0.08 + 0.16 + 0.3
    assert one.share == pytest.approx((0.1 + 0.16) / 4 / base)
    assert failures(outcome) == []


@pytest.mark.parametrize("name", ["workers", "compile"])
def test_a_rung_that_is_ablated_loses_its_gain_and_the_table_says_so(
    machine: Machine, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failures(ladder_of([name])) == []
    outcome = ladder_of([name], ablated=(name,))
    assert f"{name}: gain: gain lost: ablated" in failures(outcome)
    assert machine.launched[-1] == f"speed/{name}, ablated"
    print_ladder(console(), outcome)
    printed = capsys.readouterr().out
    assert f"{name} (ablated)" in printed
    assert "gpt2-mini: fail" in printed


def test_what_does_not_apply_is_not_run_with_its_reason_and_nothing_stands_on_it(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = ladder_of(["pinned", "no-sync"])
    assert results_of(outcome)["pinned"].not_run == "not here"
    assert results_of(outcome)["no-sync"].below == "offline"
    print_ladder(console(), outcome)
    assert "pinned: NOT RUN: not here" in capsys.readouterr().out


def test_a_launch_that_fails_is_named_and_the_ladder_goes_on(machine: Machine) -> None:
    machine.wrong = {"speed/workers"}
    outcome = ladder_of(["workers", "offline"])
    assert failures(outcome) == ["workers: crashed: made up; record record"]
    assert results_of(outcome)["offline"].measured is not None
    assert results_of(outcome)["offline"].gain is None


def test_an_interrupted_run_ends_at_once_with_what_it_has(machine: Machine) -> None:
    machine.interrupts = "speed/workers"
    outcome = ladder_of(["workers", "offline"], leave_one_out=True)
    assert outcome.interrupted
    assert machine.launched[-1] == "speed/workers"


def test_leave_one_out_runs_are_the_top_without_a_rung_and_name_the_gains_that_do_not_add_up(machine: Machine) -> None:
    """Workers help only where tokens are made: at the top, behind `offline`, they are worth nothing."""
    outcome = ladder_of([rung.name for rung in of_track(Track.SPEED)], leave_one_out=True)
    runs = [label for label in machine.launched if "without" in label]
    assert "speed/top without compile" in runs
    assert "speed/top without ddp" not in runs  # the rung below has that one
    found = {one.rung: one for one in outcome.interactions}
    tokens = 32 * CPU.architecture.sequence
    assert found["workers"].says == "interacts: worth less at the top"
    assert (found["workers"].in_track, found["workers"].at_top) == pytest.approx((0.32 / tokens, 0), rel=1e-3)
    for name, seconds in (("offline", 0.32), ("no-sync", 0.3), ("compile", 0.16)):
        assert found[name].says == "adds up"
        assert (found[name].in_track, found[name].at_top) == pytest.approx((seconds / tokens,) * 2, rel=1e-3)
    printed = {entry["rung"]: entry["says"] for entry in as_json(outcome)["interactions"]}
    assert printed["compile"] == "adds up"


def test_a_leave_one_out_run_whose_launch_fails_is_named_with_its_record_and_the_exit_code_says_so(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.wrong = {"speed/top without offline"}
    outcome = ladder_of([rung.name for rung in of_track(Track.SPEED)], leave_one_out=True)
    line = "speed/top without offline: crashed: made up; record record"
    assert failures(outcome) == [line]
    assert "offline" not in {one.rung for one in outcome.interactions}
    assert "speed/top without no-sync" in machine.launched  # the one behind it
    assert EXIT_CODES[verdict(outcome)] == exit_codes.EXECUTION_FAILED
    print_ladder(console(), outcome)
    assert line in capsys.readouterr().out
    assert json.loads(msgspec.json.encode(as_json(outcome)))["failures"] == [line]


def test_by_prediction_the_top_of_the_memory_track_has_its_least_peak(machine: Machine) -> None:
    """The machine measures what is predicted, so this says nothing of real peaks. Only `bf16` adds to the peak."""
    outcome = ladder_of([rung.name for rung in of_track(Track.MEMORY)], leave_one_out=False)
    ran = {name: rung_result for name, rung_result in results_of(outcome).items() if rung_result.measured is not None}
    shares = [rung_result.share for rung_result in ran.values() if rung_result.share is not None]
    assert (shares[0], min(shares)) == (1, shares[-1])
    gains = {name: rung_result.gain.measured for name, rung_result in ran.items() if rung_result.gain is not None}
    assert {name for name, gain in gains.items() if gain < 0} == {"bf16"}


def test_a_rung_that_allocates_more_than_predicted_fails_by_its_peak_and_by_its_gain(machine: Machine) -> None:
    """`in-place` is to take 6 % off; with 6 % more it takes nothing off. What stands above it keeps its promises."""
    machine.rank_peaks = {"memory/in-place": [1.06]}
    outcome = ladder_of([rung.name for rung in of_track(Track.MEMORY)], leave_one_out=False)
    assert failures(outcome) == ["in-place: peak: 6.0 % more than predicted", "in-place: gain: gain lost"]


@pytest.mark.parametrize(
    ("name", "divisor"),
    [
        ("gpt2-mini", 1),
        *(
            pytest.param(*case, marks=pytest.mark.rare)
            for case in (("gpt2-124m", 1), ("gpt2-350m", 1), ("gpt2-774m", 2))
        ),
        ("gpt2-1558m", 4),
    ],
)
def test_on_a_gpu_samples_are_halved_until_the_predicted_peak_of_both_baselines_fits(name: str, divisor: int) -> None:
    """On 139 GiB; with twice the samples it would not. What the tracks stand on is 4 to 1 and 1 to 4 all the same."""
    memory = 139 * GIB
    target = target_that_fits(target_of(name, device="cuda", seed=1), memory, TEXTS)
    assert target.divisor == divisor
    larger = setting_of(Track.MEMORY, [], divisor=divisor)
    assert peak_of(planned(target, larger, "", TEXTS)) <= 0.9 * memory
    if divisor > 1:
        twice = setting_of(Track.MEMORY, [], divisor=divisor // 2)
        assert peak_of(planned(target, twice, "", TEXTS)) > 0.9 * memory
    for rung in RUNGS:
        setting = setting_above(rung, RUNGS, divisor=divisor)
        plan = planned(target, setting, rung.name, TEXTS)
        assert why_too_large(plan, memory) == ""
        check_executable(plan.architecture, plan.recipe, rung.name)
        check_executable_layout(plan.workload, rung.name)
        assert plan.recipe.global_batch == setting.samples == (8 if rung.name == "speed-baseline" else 32) // divisor
        assert accumulation(plan.recipe, plan.layout) * plan.layout.micro_batch * plan.layout.ranks == setting.samples
    assert accumulation(*_accumulating(target)) == 4


def _accumulating(target: Target) -> tuple[Recipe, Layout]:
    setting = setting_of(Track.MEMORY, [NAMES["accumulate"]], divisor=target.divisor)
    plan = planned(target, setting, "", TEXTS)
    return plan.recipe, plan.layout


def test_samples_are_an_eighth_at_least_and_every_rung_has_one_for_each_rank() -> None:
    target = target_that_fits(target_of("gpt2-1558m", device="cuda", seed=1), GIB, TEXTS)
    assert target.divisor == MOST_DIVISOR
    for rung in RUNGS:
        plan = planned(target, setting_above(rung, RUNGS, divisor=8), "", TEXTS)
        assert plan.layout.micro_batch >= 1
        assert accumulation(plan.recipe, plan.layout) >= 1
    assert (CPU.divisor, CPU.memory_bytes) == (1, None)  # on a processor they are those declared
    assert why_too_large(planned(CPU, BASE[Track.MEMORY], "", TEXTS), None) == ""
    assert setting_of(Track.SPEED, []) == BASE[Track.SPEED]


def test_what_does_not_fit_is_not_run_and_what_fits_above_it_is(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """gpt2-1558m has 16 P = 23 GiB of state: on 24 GiB it fits sharded, and with Adafactor's state, about 8 P."""
    run = target_that_fits(target_of("gpt2-1558m", device="cuda", seed=1), 24 * GIB, TEXTS)
    names = [rung.name for rung in of_track(Track.MEMORY) if not rung.needs]
    outcome = ladder_of(names, run=run)
    ran = [name for name, rung_result in results_of(outcome).items() if rung_result.measured is not None]
    assert ran == ["optimizer-frugal", "fsdp-2", "fsdp-4"]
    assert machine.launched == [f"memory/{name}" for name in ran]
    base, first, last = (results_of(outcome)[name] for name in ("memory-baseline", "fsdp-2", "fsdp-4"))
    assert base.not_run == "predicted peak 63.1 GiB with 4 samples a step, more than 90% of the GPU's 24.0"
    assert (first.gain, first.share) == (None, None)
    assert last.gain is not None
    print_ladder(console(), outcome)
    printed = capsys.readouterr().out
    assert f"memory-baseline: NOT RUN: {base.not_run}" in printed
    assert "samples: 1/8 of those declared" in printed


def test_picture_object_and_page_have_every_rung_and_name_a_damaged_result(machine: Machine, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / DIRECTORY).mkdir()
    outcome = ladder_of([rung.name for rung in RUNGS], ablated=("compile",))
    write_plot(outcome, tmp_path / "ladder.png")
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")
    built = json.loads(msgspec.json.encode(as_json(outcome)))
    assert [entry["rung"]["name"] for entry in built["rungs"]] == [rung.name for rung in RUNGS]
    (tmp_path / DIRECTORY / "gpt2-mini.json").write_bytes(msgspec.json.encode(outcome))
    (tmp_path / DIRECTORY / "other.json").write_text("{", encoding="utf-8")
    plots, bad = ladders(tmp_path)
    assert [plot.id.rpartition("-")[2] for plot in plots] == ["memory", "speed"]
    assert all(plot.id.startswith("ladder-gpt2-mini-cpu-") for plot in plots)
    rows = {str(row[0]): row for row in plots[1].rows}
    assert "gain lost" in str(rows["compile (ablated)"][-1])
    assert [name.removesuffix(" (ablated)") for name in rows] == [rung.name for rung in of_track(Track.SPEED)]
    assert rows["pinned"][-1] == "NOT RUN: not here"
    assert ["other.json" in str(error) for error in bad] == [True]


def test_the_page_shows_the_newest_result_of_all_rungs_and_a_partial_one_only_in_place_of_none(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / DIRECTORY).mkdir()

    def shown(name: str, outcome: LadderResult, started: float) -> int:
        data = msgspec.json.encode(msgspec.structs.replace(outcome, started=started))
        (tmp_path / DIRECTORY / name).write_bytes(data)
        plots, bad = ladders(tmp_path)
        assert not bad
        return sum(len(plot.rows) for plot in plots)

    every = [rung.name for rung in RUNGS]
    part, whole, ablated = ladder_of(["compile"]), ladder_of(every), ladder_of(every, ablated=("compile",))
    assert (part.whole, whole.whole, ablated.whole) == (False, True, False)
    count = len(whole.rungs)
    assert shown("a.json", part, 1.0) == 3
    assert shown("b.json", whole, 0.5) == count
    assert shown("c.json", part, 2.0) == count
    assert shown("d.json", ladder_of(every, repeat=2), 3.0) == count


def test_the_page_judges_a_launch_by_what_its_own_script_promises() -> None:
    """Chunks of the loss take most of the logits off the peak."""
    expected = remembered()
    whole, parts = (
        next(f.value for f in expected(job_for(plan, CORPUS, ""), Kernels(), 2) if f.quantity is Quantity.PEAK_BYTES)
        for plan in (planned(CPU, RungSetting(loss_chunks=chunks), "", TEXTS) for chunks in (1, 32))
    )
    logits = 4 * 32 * CPU.architecture.sequence * CPU.architecture.padded_vocabulary
    assert whole - parts > 1.5 * logits


def test_without_a_name_the_rungs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder"]) == 0
    printed = capsys.readouterr().out
    assert all(rung.name in printed and rung.title.split(",")[0] in printed for rung in RUNGS)
