"""`predict` as a user sees it."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from reference_runs.accelerator import ACCELERATORS
from reference_runs.catalog import RUNS, miniatures, reference_run, run_names
from suite.metrics.figures import Quantity
from suite.predict.analytic.memory_uncertainty import PeakKind, peak_uncertainty
from suite.predict.machine_model.intervals import expected_error
from suite.report.terminal.quantities import name_of, read
from suite.report.terminal.tables import bar
from tests.support.answers import whole

# recorded layouts that the formulas find too large for their accelerators: what they keep of activations, in fp8 or in
# an order of micro-batches of their own, is not published as such; the 8B lacks 0.1 GiB
TOO_LARGE = ("llama3.1-405b",)


@pytest.fixture
def text(said):
    """A function that runs `predict`, and returns what it printed."""
    return partial(said, "predict")


@pytest.fixture
def answer(answered):
    """A function that runs `predict --json` of one run, and returns its object."""
    return partial(answered, "predict")


def test_one_object_a_line_in_the_stable_form_with_the_recorded_parameters(text):
    entries = [json.loads(line) for line in text(*run_names(), "--json", code=1).splitlines()]
    assert [entry["run"] for entry in entries] == run_names()
    for entry in entries:
        timed = any(row["quantity"] == "step_seconds" and row["left"] is not None for row in entry["figures"])
        keys = {"run", "status", "verdict", "record", "edition", "figures"}
        keys |= {"stack", "memory"}
        keys |= {"step_seconds_uncertainty", "intervals"} if timed else set()
        assert set(entry) - {"assumed", "memory_verdict", "probability_fits"} == keys
        # the errors of published tables that a fit has not seen: neither none nor half of the time
        assert not timed or 0 < entry["step_seconds_uncertainty"] < 0.5
        for quantity, (least, most) in entry.get("intervals", {}).items():
            of_quantity = [row for row in entry["figures"] if row["quantity"] == quantity and row["term"] is None]
            left = next(row["left"] for row in of_quantity if row["stage"] is None and row["left"])
            assert 0 < least < left < most
            assert least * most / left == pytest.approx(left, rel=1e-9)  # as far below as above, as factors
        for row in entry["figures"]:
            assert row["quantity"] in set(Quantity)
            assert row["left"] is None or row["left"] >= 0
        row = next(row for row in entry["figures"] if row["quantity"] == "parameters")
        assert row["left"] == row["right"] == reference_run(entry["run"]).reported.parameters
        assert row["difference"] == 0


def test_every_stage_has_its_row(answer):
    entry = answer("mt-nlg-530b")
    stages = [row["stage"] for row in entry["figures"] if row["quantity"] == "peak_bytes" and row["term"] is None]
    assert stages == [None, *range(35)]
    sent = [row for row in entry["figures"] if row["quantity"] == "messages" and row["operation"] == "send"]
    assert [row["stage"] for row in sent] == [None, *range(35)]


def test_another_format_of_the_products_changes_time_and_memory_and_no_flop(answer):
    asked = ("llama3.1-8b", "--layout", "dp8,zero1,fused", "--on", "h100")
    wide, narrow = ({}, {})
    for figures, product_format, code in ((wide, "none", 1), (narrow, "fp8-current", 0)):
        entry = answer(*asked, "--gemm-dtype", product_format, code=code)
        for row in entry["figures"]:
            if row["term"] in (None, "of the peak in fp8") and row["axis"] is None and row["stage"] is None:
                figures[row["quantity"], row["term"]] = row["left"]
    for quantity in ("model_flop", "hardware_flop", "parameters"):
        found = [key for key in wide if key[0] == quantity]
        assert found
        assert [wide[key] for key in found] == [narrow[key] for key in found]
    assert narrow["step_seconds", None] < wide["step_seconds", None]
    assert narrow["activation_bytes", None] < wide["activation_bytes", None]
    # h100-sxm: 989.4 Tflop/s in bf16, 1,978.9 in fp8
    ratio = narrow["mfu", None] / narrow["mfu", "of the peak in fp8"]
    assert ratio == pytest.approx(1978.9 / 989.4, rel=1e-12)


def test_products_that_the_accelerator_has_not_are_refused_with_those_that_have_them(refused):
    line = refused("predict", "deepseek-v3", "--on", "a100")
    assert "a100-sxm-80gb computes no matrix products in this format; got fp8-blockwise, allowed: none, or an" in line
    assert "h100-sxm" in line
    line = refused("predict", "llama3.1-405b", "--on", "h200", "--gemm-dtype", "nvfp4")
    assert (
        "got nvfp4, allowed: none, fp8-delayed, fp8-current, fp8-blockwise, or another accelerator: b200-sxm, " in line
    )
    line = refused("predict", "llama3.1-8b", "--on", "t4", "--gpus", "8")
    assert line.endswith("t4 has no peak_flop_per_second for the dtype; got 'bf16', allowed: --precision fp16")
    line = refused("predict", "mixtral-8x7b", "--layout", "dp1,tp1,pp1,ep16,micro1")
    assert line.endswith("layout.expert_parallel does not divide architecture.experts = 8; got 16")


def test_deepseek_v3_takes_its_products_format_from_its_record(answer):
    """In fp8 its step is 7 % shorter than the published one, an average with all that it waits for."""
    entry = answer("deepseek-v3")
    (row,) = (row for row in entry["figures"] if row["quantity"] == "step_seconds" and row["term"] is None)
    assert -0.1 < row["left"] / row["right"] - 1 < 0
    plain = whole(answer("deepseek-v3", "--gemm-dtype", "none"))["step_seconds"]
    assert plain / row["left"] - 1 > 0.15


def test_a_layout_of_ones_own_takes_the_place_of_the_recorded_one(text):
    shown = text("llama2-70b", "--layout", "dp16,tp8,pp4,micro1", "--on", "h100")
    assert shown.startswith(
        "llama2-70b on 512 h100-sxm with generic (no framework is named)\n"
        "dp16,tp8,pp4,zero0,1f1b,recompute-none,fused,micro1\n"
    )
    # 64 nodes and no recorded network
    assert "assumed: 3,200 Gbit/s out of a node, as is usual for h100-sxm (--network)" in shown
    shown = text("llama2-70b", "--layout", "dp16,tp8,pp4", "--on", "h100", "--network", "3200", "--all")
    assert "69 % likely to fit: 66.8 GiB of 78.5 usable" in shown
    assert "3,200 Gbit/s out of each node, as asked for" in shown
    assert "where the time goes" in shown
    shown = text("llama2-70b", "--layout", "dp1,tp8,micro1,zero0", "--on", "mi300x")
    assert "where the time goes" in shown


def test_the_first_line_says_which_attention_was_taken(text):
    table = {
        ("llama2-70b", "dp8,tp8,zero1", "generic"): "fused",
        ("llama2-70b", "dp8,tp8,zero1", "megatron-lm-2022"): "unfused",
        ("llama2-70b", "dp8,tp8,zero1,unfused", "generic"): "unfused",
        ("gpt2-124m", "dp8,unfused", "llm-c"): "unfused",
    }
    for (run, layout, stack), said in table.items():
        too_large = run == "llama2-70b"
        shown = text(run, "--layout", layout, "--on", "h100", "--stack", stack, code=too_large)
        words = shown.partition(";")[0].replace(" ", "").replace("\n", "").split(",")
        assert said in words, stack


def test_a_layout_that_is_not_published_is_assumed_and_its_missing_facts_are_named(text, answer):
    shown = text("llama2-70b")
    lines = shown.replace("\n    ", " ").splitlines()
    assert "published figures are of a layout that is not published: not compared" in lines
    missing = [f"layout.{key}" for key in ("micro_batch", "data_parallel", "tensor_parallel", "pipeline_stages")]
    assert f"not published ({', '.join(missing)}): not compared" in " ".join(text("llama2-70b", "--all").split())
    assert "where the memory goes" in shown
    assumed = {line.rpartition("(")[2].rstrip(")") for line in lines if line.startswith("assumed: ")}
    assert assumed == {"--gpus", "--layout", "--network", "--stack"}
    assert {option for _, option in answer("llama2-70b")["assumed"]} == assumed
    # what was published of its hours needs no layout: its MFU is compared, and is not the predicted one
    mfu = [line.split()[1:6] for line in text("llama2-70b", "--all").splitlines() if line.startswith("MFU")]
    assert ["42.8", "%", "42.8", "%", "0.1"] in mfu
    assert not any("42.8" in line for line in lines if line.startswith("MFU"))
    assert "not predicted: first_loss: the formula holds for pre-norm, not for deep-norm" in text("glm-130b", "--all")


def test_assumptions_are_printed(text):
    shown = " ".join(text("mt-nlg-530b", "--all").split())
    assert "layout.zero_stage" in shown.partition("assumed, with reasons in `show mt-nlg-530b`")[2]
    stack = (
        "software: Megatron-LM's layers of early 2021 under DeepSpeed's pipeline engine and activation checkpointing"
    )
    assert f"{stack} (`--stack`; deepspeed-pipeline)" in shown
    unseen = expected_error([])
    assert f"fitted to published step times of a100-sxm-80gb: expect errors of {100 * unseen:.0f} %" in shown


def test_another_stack_takes_the_place_of_the_recorded_one(text, answer, refused):
    def seconds(*arguments):
        return whole(answer("bloom-176b", *arguments))["step_seconds"]

    recorded, same, newer = seconds(), seconds("--stack", "deepspeed-pipeline"), seconds("--stack", "megatron-core")
    # libraries of early 2021 and a host that waits at every layer, or neither
    assert newer < same == recorded
    shown = " ".join(text("bloom-176b", "--stack", "megatron-core", "--all").split())
    assert "software: Megatron-Core with Transformer Engine, as Megatron-LM runs it (`--stack`; megatron-core)" in shown
    assert seconds("--stack", "NVIDIA NeMo") == newer  # as people write it
    line = refused("predict", "bloom-176b", "--stack", "megatorn-core")
    assert line.startswith("--stack: unknown stack; got 'megatorn-core', did you mean megatron-core? allowed: ")


NONSENSE = [
    ("--layout dp4,tp5,pp2", ("--layout: layout.tensor_parallel does not divide", "heads")),
    ("--layout pp71", ("more pipeline stages than layers; got 71", "at most", "= 70")),
    ("--layout dp2048", "2048 (dp) * 2 (micro-batch) = 4096 samples are more than"),
    ("--layout dp3", ("does not divide the global batch of 2048 samples", "allowed: dp 1, 2, 4")),
    ("--layout dp4,pp5,interleave2", "interleaving needs a multiple of 5 (pp) micro-batches; got 256"),
    ("--layout cp3,dp2", "layout.context_parallel does not divide architecture.sequence"),
    ("--layout dp2,every2,recompute-none", "layout.checkpoint_layers belongs to recompute-full"),
    ("--layout 'dp8;tp4'", "--layout: not a layout; got 'dp8;tp4', allowed: dpN, tpN"),
    ("--on h500", "unknown accelerator; got 'h500', did you mean h800? allowed: a100"),
    ("--on v100", ("v100-sxm-32gb has no peak_flop_per_second", "got 'bf16'", "allowed: --precision fp16")),
    ("--on ''", "unknown accelerator; got ''"),
    ("--on mine.toml", "mine.toml: cannot read the accelerator file"),
    ("--network 0", "--network: not a usable number; got 0.0, allowed: a finite one above 0"),
    ("--price nan", "--price: not a usable number; got nan"),
    ("--pue inf", "--pue: not a usable number; got inf"),
    ("--pue 0.5", "--pue"),
    ("nope", "unknown run; got 'nope'"),
]
OF_MINIATURES = [
    (f"--{option} {value}", f"--{option} with the miniature bloom-mini")
    for option, value in (("on", "h100"), ("layout", "dp2"), ("stack", "generic"), ("products", "none"))
]


def test_nonsense_is_refused_with_what_is_allowed_before_anything_is_printed(not_refused):
    assert not_refused("predict bloom-176b", NONSENSE) == []
    assert not_refused("predict bloom-mini", OF_MINIATURES) == []


def test_choices_come_as_rows_and_as_text(text, answer):
    entry = answer("bloom-176b", "--choices")
    named = {(choice["topic"], choice["name"]): choice["value"] for choice in entry["choices"]}
    assert named["memory", "training state of the model"] == 18 * 176_247_271_424
    assert named["batch and ranks", "world size"] == 384
    assert named["batch and ranks", "samples of an update"] == 2048
    shown = text("bloom-176b", "--choices")
    assert "largest useful size" in shown
    assert answer("bloom-mini", "--choices")["choices"] == []


def test_costs_follow_from_the_prices_given(text, answer):
    entry = answer("bloom-176b", "--price", "2", "--energy-price", "0.1", "--pue", "1.2")
    values = {(row["quantity"], row["term"]): row["left"] for row in entry["figures"] if row["stage"] is None}
    hours = values["accelerator_seconds", None] / 3600
    # products of a few numbers
    assert values["cost", "accelerators"] == pytest.approx(2 * hours, rel=1e-15)
    # 400 W of each A100, 85 % of it drawn on average
    assert values["energy_joules", None] == pytest.approx(hours * 3600 * 400 * 0.85 * 1.2, rel=1e-15)
    assert values["cost", "energy"] == pytest.approx(hours * 0.4 * 0.85 * 1.2 * 0.1, rel=1e-15)
    assert "cost" in text("bloom-176b", "--price", "2")
    assert not any(row["quantity"] == "cost" for row in answer("bloom-176b")["figures"])


def test_a_prediction_for_another_machine_says_where_the_published_was_measured(answer):
    for arguments in (["--on", "h200"], ["--layout", "dp8,tp8,pp6"]):
        entry = answer("bloom-176b", *arguments)
        whys = {row["quantity"]: row["why"] for row in entry["figures"] if row["right"] is not None}
        assert whys["step_seconds"].startswith("published on 384 a100-sxm-80gb, dp8,tp4,pp12,zero1")
        assert not any((row["term"] or "").startswith("at the published") for row in entry["figures"])


def test_what_does_not_fit_is_said(text, answer):
    line = next(s for s in text("gpt2-1558m", "--on", "rtx-4090", code=1).splitlines() if "fit" in s)
    assert line == "does not fit (under 1 % likely to): 53.2 GiB of 23.0 usable, fullest after the forward pass"
    entry = answer("gpt2-1558m", "--on", "rtx-4090", code=1)
    peak = next(row for row in entry["figures"] if row["quantity"] == "peak_bytes" and row["stage"] is None)
    assert peak["why"].startswith("not published: does not fit: 24,711,161,446 bytes of the accelerator are usable")
    assert "\nfits (89 % likely): 53.2 GiB of 78.5 usable, " in text("gpt2-1558m")
    assert "usable memory, GiB: 24 - 0.4 driver - 0.59 CUDA" in text("gpt2-1558m", "--on", "rtx-4090", "--all", code=1)


def test_whether_it_fits_goes_by_its_probability(tmp_path, text, answer):
    """The peak stays, the board shrinks around it."""
    entry = answer("bloom-176b")
    peak = whole(entry)["peak_bytes"]
    memory = entry["memory"]
    assert memory["usable"] == memory["printed"] - memory["driver"] - memory["context"]
    assert (memory["printed"], memory["driver"]) == (80 * 2**30, 0.9 * 2**30)
    sheet = (ACCELERATORS / "a100_sxm_80gb.toml").read_text(encoding="utf-8")
    uncertainty = peak_uncertainty(PeakKind.FORMULA)
    for share, words, code in (
        (0.999 / uncertainty.interval(1.0)[1], "fits (90 % likely): ", 0),
        (0.999 * uncertainty.room(1.0), "fits (75 % likely): ", 0),
        (1.02 * uncertainty.room(1.0), "73 % likely to fit: ", 0),
        (0.999, "50 % likely to fit: ", 0),
        (1.02, "does not fit (48 % likely to): ", 1),
    ):
        printed = int(peak / share + memory["driver"] + memory["context"])
        path = tmp_path / f"board{code}.toml"
        path.write_text(
            sheet.replace('value = 80, unit = "GiB"', f'value = {printed}, unit = "byte"'), encoding="utf-8"
        )
        shown = text("bloom-176b", "--on", str(path), code=code)
        line = next(each for each in shown.splitlines() if "fit" in each)
        assert line.startswith(words)


def test_modules_of_transformers_are_walked_through_where_they_can_be_else_a_formula_answers(text, answer):
    layout = ("--layout", "dp8,zero3,fused", "--gpus", "8", "--on", "h200")
    note = "memory by formula: that of transformers is not described with "
    assert note not in text("llama2-7b", *layout, "--stack", "HF Trainer")
    peaks = [whole(answer("llama2-7b", *layout, "--stack", name))["peak_bytes"] for name in ("HF", "PyTorch DDP, AMP")]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.001)  # whose modules are written alike
    split = text("llama2-7b", "--layout", "dp4,tp2,fused", "--on", "h200", "--stack", "torchtune")
    assert "memory by formula: that of pytorch is not described with tensors or layers split over ranks" in split
    assert f"{note}positions alibi; a norm of embeddings" in " ".join(
        text("bloom-176b", "--stack", "HF Trainer").split()
    )


def test_the_first_line_says_the_stack_and_the_one_that_would_change_most(text, answer):
    entry = answer("bloom-176b")
    read_as = entry["stack"]
    assert (read_as["name"], read_as["read_as"]) == ("deepspeed-pipeline", "'Megatron ... BigScience'")
    rival = read_as["rival"]

    def figures(stack):
        found = whole(answer("bloom-176b", "--stack", stack))
        return found["step_seconds"], found["peak_bytes"]

    def changes(stack):
        return [there / here - 1 for there, here in zip(figures(stack), figures("deepspeed-pipeline"), strict=True)]

    assert changes(rival["choice"]) == pytest.approx([rival["step_seconds"], rival["peak_bytes"]])
    for other in ("megatron-core", "glm-largescale", "megatron-lm-2021", "pytorch"):
        assert max(map(abs, changes(other))) <= max(map(abs, changes(rival["choice"]))) + 1e-12
    first, _, third, *_ = text("bloom-176b").splitlines()
    assert first == "bloom-176b on 384 a100-sxm-80gb with deepspeed-pipeline ('Megatron ... BigScience')"
    less = [f"{-100 * rival[f'{what}']:.1f} % less" for what in ("step_seconds", "peak_bytes")]
    assert third == f"with {rival['choice']} instead: {less[0]} time, {less[1]} memory"


def test_a_wrong_stack_accelerator_or_format_says_what_it_changes(text, answer, refused):
    def figures(*arguments):
        return whole(answer("megascale-175b", *arguments))

    def changed(*arguments):
        return answer("megascale-175b", *arguments).get("changed", [])

    assert changed() == []
    for arguments, words in (
        (("--stack", "pytorch"), "stack pytorch in place of megatron-core"),
        (("--on", "h100"), "h100-sxm in place of a100-sxm-80gb"),
    ):
        (change,) = changed(*arguments)
        assert change["choice"] == words
        after, before = figures(*arguments), figures()
        for quantity in ("step_seconds", "peak_bytes"):
            assert change[quantity] == pytest.approx(after[quantity] / before[quantity] - 1, abs=1e-12)
        assert abs(change["step_seconds"]) > 0.01
        shown = " ".join(text("megascale-175b", *arguments).split())
        more = "more" if change["step_seconds"] > 0 else "less"
        assert f"{words}: {100 * abs(change['step_seconds']):.1f} % {more} time" in shown
    # FP8 where the run has none: beside the other accelerator, each by itself
    onto = ("--on", "h100", "--gemm-dtype", "fp8-delayed")
    board, products = changed(*onto)
    assert products["choice"] == "products in fp8-delayed in place of bf16 alone"
    assert products["step_seconds"] == pytest.approx(
        figures(*onto)["step_seconds"] / figures("--on", "h100")["step_seconds"] - 1
    )
    assert products["step_seconds"] < -0.1
    assert board["choice"] == "h100-sxm in place of a100-sxm-80gb"
    # software of NVIDIA's accelerators stays there: what changes besides the accelerator is named
    (elsewhere,) = changed("--on", "mi300x")
    assert elsewhere["choice"] == "mi300x in place of a100-sxm-80gb, and stack generic in place of megatron-core"
    # and where the accelerator has none, it is refused with those that have it
    assert "allowed: none, or another accelerator: " in refused(
        "predict", "megascale-175b", "--gemm-dtype", "fp8-delayed"
    )


def test_a_framework_without_a_version_is_of_the_time_of_the_accelerator(text):
    for on, expected in ((), "megatron-lm-2022"), (("--on", "h100"), "megatron-core"):
        assert f" with {expected} ('Megatron-LM'" in text("gpt3-175b", *on, "--stack", "Megatron-LM")
    named = text("gpt3-175b", "--on", "h100", "--stack", "megatron-lm-2022")
    assert named.partition("\n")[0].endswith(" with megatron-lm-2022")


def test_what_shares_the_last_line_of_time_and_memory_is_named(text, answer):
    seconds_of_step = whole(answer("bloom-176b"))["step_seconds"]
    assert len(text("bloom-176b", "--all").splitlines()) > 100
    lines = text("bloom-176b").splitlines()
    assert lines[-1] == "--all prints 19 more figures, stages, messages and notes"
    first = next(number for number, line in enumerate(lines) if line.startswith("where the time goes"))
    (*_, last) = shown = lines[first + 1 : first + 4]
    assert last.startswith("recomputation, bubble, ")
    assert " more " in last
    seconds = [float(line.split("%")[0].split()[-2]) for line in shown]
    assert sum(seconds) == pytest.approx(seconds_of_step, rel=1e-3)


def test_how_far_a_prediction_is_from_what_was_published_is_said_in_words(text, answer):
    entry = answer("bloom-176b")
    exact = next(r for r in entry["figures"] if r["quantity"] == "step_seconds" and r["right"] and r["left"])
    for arguments in ((), ("--all",)):
        shown = text("bloom-176b", *arguments)
        row = next(line.split() for line in shown.splitlines() if line.startswith("step time"))
        assert (row[2], row[4]) == (f"{exact['left']:.4g}", f"{exact['right']:.4g}")
        share = exact["right"] / exact["left"] - 1
        assert row[6:9] == [f"{100 * abs(share):.1f}", "%", "slower" if share > 0 else "faster"]


def test_another_machine_or_layout_is_not_compared_with_the_recorded_one(text):
    for arguments in (("--on", "h100"), ("--layout", "dp8,tp8,pp6"), ("--on", "h100", "--all")):
        shown = text("bloom-176b", *arguments)
        rows = [line.split() for line in shown.splitlines() if line.startswith(("step time", "peak memory", "MFU"))]
        assert rows
        cells = {cell for row in rows for cell in row}
        assert not {"slower", "faster", "more", "less", "higher", "lower", "equal"} & cells
        assert "published figures are on 384 a100-sxm-80gb" in shown
        assert "not compared" in shown


def test_an_interval_stands_in_the_line_of_its_figure(text, answer):
    entry = answer("bloom-176b")
    shown = text("bloom-176b").splitlines()
    assert next(line for line in shown if line.startswith("quantity")).endswith("  80 % between")
    assert set(entry["intervals"]) == {"step_seconds", "peak_bytes"}
    for quantity, scale, unit in (("step_seconds", 1, "s"), ("peak_bytes", 2**30, "GiB")):
        least, most = (end / scale for end in entry["intervals"][quantity])
        line = next(line for line in shown if line.startswith(name_of(quantity)))
        assert line.endswith(f"  {least:.0f}\u2013{most:.0f} {unit}")
    assert f"80 % between {entry['intervals']['step_seconds'][0]:.0f} to " in text("bloom-176b", "--all")


def test_shares_of_the_memory_add_up(text):
    for name in ("bloom-176b", "mt-nlg-530b", "gpt3-175b", "opt-175b"):
        section = text(name, "--all").partition("where the memory goes")[2].partition("\n\n")[0]
        shares = [float(share) for share in re.findall(r"([\d.]+) %", section)]
        # each is printed to 0.1 %: off by half of that
        assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))


def test_no_cell_is_cut_and_a_prediction_takes_at_most_25_lines_of_a_terminal(monkeypatch, text, said):
    """Narrow and wide alike; with --all too nothing is cut."""
    wrong = []
    for width in (60, 150):

        def console(*, stderr=False, width=width):
            return Console(width=width, highlight=False, stderr=stderr)

        monkeypatch.setattr("suite.commands.predict.console", console)
        monkeypatch.setattr("suite.commands.show.console", console)
        for name in run_names():
            shown = text(name, "--all", code=name in TOO_LARGE)
            if "…" in shown or max(map(len, shown.splitlines())) > width:
                wrong.append((width, name))
        assert "board.link_bytes_per_second_both_ways" in said("show", "h100")
    monkeypatch.undo()
    for width, options in ((80, ()), (100, ("--on", "h100", "--network", "3200"))):
        monkeypatch.setenv("COLUMNS", str(width))
        # H100 has no MXFP8
        runs = [each for each in run_names() if not (options and each == "nemo-deepseek-v3-gb200")]
        for name in runs if options else [*runs, *miniatures()]:
            too_large = name in TOO_LARGE
            shown = text(name, *options, code=too_large)
            lines = shown.splitlines()
            # that it does not fit, and by how much, takes two lines at a width of 80; an assumption has its own line
            taken = sum(-(-len(line) // width) for line in lines if not line.startswith("assumed: "))
            if "…" in shown or taken > 25 + too_large or not lines[0].startswith(name):
                wrong.append((width, name, taken, lines[0]))
    assert wrong == []


def offloaded(directory: Path, part: str) -> str:
    """BLOOM's run file with a part of the state on the host."""
    path = directory / f"offloaded_{part}.toml"
    text_of_file = (RUNS / "bloom_176b.toml").read_text(encoding="utf-8")
    entry = f'offload = {{ value = "{part}", kind = "stated", source = "slurm" }}'
    path.write_text(text_of_file.replace("[layout]\n", f"[layout]\n{entry}\n"), encoding="utf-8")
    return str(path)


def test_an_offloaded_optimizer_takes_longer_and_offloaded_state_has_memory_and_choices_but_no_time(tmp_path, text):
    shown, usual = text(offloaded(tmp_path, "optimizer")), text("bloom-176b")
    times = [float(re.search(r"step time +([\d.]+) s", each)[1]) for each in (shown, usual)]
    assert times[0] > times[1]
    shown = text(offloaded(tmp_path, "state"), "--choices")
    assert "transfers to and from the host are not described (offloaded: state)" in " ".join(shown.split())
    assert "where the memory goes" in shown
    assert "where the time goes" not in shown
    assert "fits on one accelerator" in shown


def test_a_bar_is_as_long_as_its_share():
    assert [bar(share, cells=4) for share in (0.5, 5 / 16, 0.0, 2.0)] == ["██", "█▎", "", "████"]


def test_numbers_are_read_in_units_for_people():
    assert read(59e9, "peak_bytes") == "54.95 GiB"
    assert read(86400.0 * 118.24, "training_seconds") == "118.2 days"
    assert read(149.02e12, "hardware_flop_per_second") == "149.0 Tflop/s"
    assert read(0.5480, "mfu") == "54.8 %"
    assert read(3600.0 * 67013, "accelerator_seconds") == "67,013"
    assert read(176_247_271_424, "parameters") == "176,247,271,424"
    assert read(None, "mfu") == "-"


def test_a_node_of_several_hosts_is_said_with_its_network(text):
    words = "a node: the 72 accelerators that NVLink 5 joins, {} Gbit/s out of it"
    assert words.format("28,800") in text("llama3.1-405b", "--on", "gb200", code=0)
    assert words.format("3,200") in text("llama3.1-405b", "--on", "gb200", "--network", "3200", code=0)
    assert "a node: the" not in text("llama3.1-405b", "--on", "h200-sxm", code=0)
