"""`fit` of a module of the user's own, and of a configuration, as a user sees it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from reference_runs.accelerator import ACCELERATORS, accelerator
from suite.commands.json_schemas import schema
from suite.commands.traced_fit import layouts
from suite.commands.traced_options import OF_TRACED
from suite.job.trace_layout import trace_layout
from suite.predict.analytic.memory_uncertainty import PeakKind, peak_uncertainty
from suite.predict.analytic.usable_memory import usable_memory
from tests.commands.test_traced_model import SHAPE
from tests.execute.trace import models

pytestmark = pytest.mark.ranks

FILE = str(Path(models.__file__))
ASKED = ("--gpus", "4", "--sequence", "256", "--micro-batch", "4")


@pytest.fixture
def small(tmp_path: Path) -> str:
    """An H100 with memory for the sharded model alone: a peak of 40 MB fits."""
    sheet = (ACCELERATORS / "h100_sxm.toml").read_text(encoding="utf-8")
    whole = usable_memory(accelerator("h100-sxm").board)
    printed = 'memory_bytes = { value = 80, unit = "GiB"'
    assert printed in sheet
    size = int(whole.printed - whole.usable + 40_000_000 / peak_uncertainty(PeakKind.WALKED).room(1.0)) + 1
    path = tmp_path / "small.toml"
    path.write_text(sheet.replace(printed, f'memory_bytes = {{ value = {size}, unit = "byte"'))
    return str(path)


def test_a_model_of_ones_own_fits_in_the_layouts_that_shard_it(said, answered, small):
    answer = answered("fit", f"{FILE}:build", *ASKED, "--on", small)
    jsonschema.validate(answer, schema("fit"))
    assert (answer["answered_by"], answer["no_formula"]) == ("trace", "a module of your own")
    of = {step["layout"]: step for step in answer["steps"]}
    fitting = {layout for layout, step in of.items() if step["peak_bytes"] <= answer["memory_bytes"]}
    assert 0 < len(fitting) < len(of) == answer["traces"] == 9
    assert answer["layouts"] == {"considered": 9, "fitting": len(fitting)}
    assert all("zero3" in layout for layout in fitting)
    rates = {layout: of[layout]["tokens_per_second"] for layout in fitting}
    assert answer["fastest"]["layout"] == max(rates, key=rates.__getitem__)
    assert answer["smallest"]["peak_bytes"] == min(step["peak_bytes"] for step in of.values())
    assert answer["largest_micro_batch"] is answer["accelerators_that_would_do"] is None
    # what it says of the fastest layout is what `predict` says of it
    asked = ("--layout", answer["fastest"]["layout"], "--sequence", "256", "--on", small)
    predicted = answered("predict", f"{FILE}:build", *asked)
    assert predicted["peak_bytes"] == answer["fastest"]["peak_bytes"]
    assert predicted["step_seconds"] == answer["fastest"]["step_seconds"]


def test_what_does_not_fit_says_how_many_accelerators_would_do(said, small):
    asked = ("--sequence", "256", "--on", small, "--fix", "recompute-full")
    lines = said("fit", f"{FILE}:build", *asked, code=1).splitlines()
    assert re.match(rf"does not fit \(.* likely to\): {re.escape(FILE)}:build on 1 ", lines[0])
    assert lines[1] == "no formula: a module of your own, so its own code was executed"
    (remedy,) = (line for line in lines if "accelerators would do" in line)
    number = int(remedy.split()[0])
    assert f"(--gpus {number}): dp{number},zero3,recompute-full,micro1" in remedy


def test_a_configuration_that_a_formula_describes_is_searched_by_it(said, answered, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama"} | SHAPE))
    asked = ("--on", "h100", "--gpus", "8")
    assert said("fit", str(path), *asked).startswith(f"fits (97 % likely): {path}, by formula on 8 h100-sxm")
    assert answered("fit", str(path), *asked)["answered_by"] == "formula"
    assert answered("plan", str(path), *asked)["best"]


def test_words_that_stay_leave_the_others_open():
    assert layouts("", 1) == ["zero0", "zero0,selective-op", "zero0,recompute-full"]
    assert len(layouts("", 2)) == 9
    assert layouts("zero3,recompute-none", 2) == ["noreshard,zero3,recompute-none", "zero3,recompute-none"]
    assert layouts("zero0", 2) == ["zero0", "selective-op,zero0", "recompute-full,zero0"]
    for words in layouts("", 2):
        assert trace_layout(f"dp2,{words}").ranks == 2


def test_what_a_trace_does_not_know_is_refused(refused):
    for option in (("--stack", "pytorch"), ("--tokens", "1e9"), ("--any-software",)):
        assert refused("fit", f"{FILE}:build", *option) == f"{option[0]}: is of runs"
    assert refused("fit", "gpt2-124m", "--trace") == f"--trace: {OF_TRACED}"
    assert "allowed: a multiple of 6, a micro-batch of each rank" in refused(
        "fit", f"{FILE}:build", "--gpus", "2", "--batch", "8", "--micro-batch", "3"
    )
    assert "a trace splits neither tensors nor layers" in refused("fit", f"{FILE}:build", "--fix", "tp2")
