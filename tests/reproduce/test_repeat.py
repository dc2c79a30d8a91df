"""The command that a record shows launches the same job again."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest

from reference_runs.catalog import miniatures, reference_run
from reference_runs.errors import InputError
from reference_runs.layout import Layout, parse_layout
from reference_runs.run import ProductFormat
from suite.job.corpus import STANDARD_LIBRARY
from suite.job.options import Averaging, TrainingOptions
from suite.paths import RECORDED
from suite.records.record import Begin
from suite.reproduce.plan import plan
from suite.reproduce.repeat import repeating_command
from suite.reproduce.request import Request
from tests.support.record_halves import stored_records


def recorded() -> list[Begin]:
    """One launch of every miniature, number of ranks and way of execution that is committed."""
    launches = [record.begin for name in miniatures() for record in stored_records(RECORDED, name)[0]]
    return [*{(one.run, one.job.ranks, one.job.compiled): one for one in launches}.values()]


def planned_again(command: str, results: Path):
    """The plan for the words of a command."""
    *begin, name = (words := shlex.split(command))[:5]
    assert begin == ["python", "-m", "suite", "reproduce"]
    options: dict[str, object] = {}
    rest = iter(words[5:])
    for word in rest:
        if word in ("--compile", "--no-compile"):
            options["compiled"] = word == "--compile"
        elif word == "--renew-second-moment":
            options["renewal"] = True
        else:
            value = next(rest)
            options["products" if word == "--gemm-dtype" else word[2:].replace("-", "_")] = value
    return plan(msgspec.convert({"name": name, "results": results, **options}, Request, strict=False))


def job_of(begin: Begin) -> tuple:
    job = begin.job
    return job.workload, job.compiled, job.seed, job.steps, job.kernels, job.averaging, job.exact_steps, job.renewal


def test_a_global_batch_that_was_asked_for_is_asked_for_again(tmp_path):
    asked = plan(Request(name="bloom-mini", device="cpu", global_batch=16, results=tmp_path))
    assert (asked.recipe.global_batch, asked.recipe.batch_rampup_start) == (16, None)
    (change,) = asked.changes
    assert change.startswith("global batch 16 samples (")
    usual = plan(Request(name="bloom-mini", device="cpu", results=tmp_path))
    same = plan(Request(name="bloom-mini", device="cpu", global_batch=usual.recipe.global_batch, results=tmp_path))
    assert (same.recipe, same.layout, same.changes) == (usual.recipe, usual.layout, ())


def test_a_global_batch_is_of_all_replicas_also_of_ranks_that_share_experts_out(tmp_path):
    usual = plan(Request(name="mixtral-mini", device="cpu", layout="ep2", results=tmp_path))
    micro_batch = usual.layout.micro_batch
    with pytest.raises(InputError, match=rf"--global-batch: .* allowed: multiples of {2 * micro_batch}"):
        plan(Request(name="mixtral-mini", device="cpu", layout="ep2", global_batch=micro_batch, results=tmp_path))


def test_every_recorded_miniature_has_the_command_that_plans_its_job(tmp_path):
    begins = recorded()
    assert len(begins) >= 7
    for begin in begins:
        command = repeating_command(begin)
        assert command is not None
        again = planned_again(command, tmp_path)
        workload = (again.architecture, again.recipe, again.layout)
        others = (again.compiled, again.seed, again.steps, again.kernels, again.averaging)
        assert (workload, *others, again.exact_steps, again.renewal) == job_of(begin), command


def command_of(begin: Begin, *, job: dict[str, object] | None = None, **changed: object) -> str | None:
    """The command for a record with another job, or other facts."""
    own = msgspec.structs.replace(begin.job, **(job or {}))
    return repeating_command(msgspec.structs.replace(begin, job=own, **changed))


def test_what_is_not_the_default_is_said_and_quoted():
    begin = recorded()[0]
    for changed, words in (
        ({"averaging": Averaging.ONE_BIT, "exact_steps": 5, "renewal": True}, "--optimizer one-bit-adam"),
        ({"averaging": Averaging.POWER_SGD, "exact_steps": 5}, "--gradient-compression powersgd"),
        ({"seed": 7, "steps": 12}, "--steps 12 --seed 7"),
    ):
        command = command_of(begin, job=changed)
        assert words in command
        assert ("--exact-steps 5" in command) == ("exact_steps" in changed)
        assert command.endswith("--renew-second-moment") == ("renewal" in changed)
    assert begin.corpus.source == STANDARD_LIBRARY
    corpus = msgspec.structs.replace(begin.corpus, source="/data/my texts")
    assert "--corpus '/data/my texts'" in command_of(begin, corpus=corpus)


def test_a_format_of_products_that_was_asked_for_is_asked_for_again(tmp_path):
    begin = recorded()[0]
    recipe = msgspec.structs.replace(begin.job.recipe, product_format=ProductFormat.FP8_CURRENT)
    command = command_of(begin, job={"recipe": recipe})
    assert "--gemm-dtype fp8-current" in command
    assert planned_again(command, tmp_path).recipe == recipe


def test_rungs_run_files_and_several_hosts_have_no_such_command():
    begin = recorded()[0]
    assert command_of(begin, job={"training_options": TrainingOptions(rung="naive")}) is None
    assert command_of(begin, job={"interface": "eth1"}) is None
    assert command_of(begin, run="my-run") is None


@pytest.mark.parametrize("run", ["bloom-176b", "nemotron4-340b"])
def test_the_layout_of_the_command_is_read_as_the_same_and_takes_nothing_from_the_recorded_one(run):
    base, begin = reference_run(run).recorded_layout or Layout(), recorded()[0]
    for word in ("all-reduce", "reduce-scatter", "every1", "unfused"):
        launched = parse_layout(f"dp2,zero1,{word}", base=base)
        words = shlex.split(command_of(begin, job={"layout": launched}))
        text = words[words.index("--layout") + 1]
        assert parse_layout(text, base=launched) == launched
        other = msgspec.structs.replace(
            base,
            reduce_scatter=not launched.reduce_scatter,
            checkpoint_layers=7,
            fused_attention=not launched.fused_attention,
        )
        again = parse_layout(text, base=other)
        for name in ("reduce_scatter", "checkpoint_layers", "fused_attention"):
            assert getattr(again, name) == getattr(launched, name)


def test_workers_at_a_parameter_store_are_asked_for_again(tmp_path):
    asked = {"synchronisation": "ssp:3", "slow_rank": "0:1.5,1:2:10"}
    first = plan(Request(name="gpt2-mini", device="cpu", results=tmp_path, **asked))
    same = ("name", "architecture", "recipe", "layout", "synchronisation", "slow_ranks")
    job = {name: getattr(first, name) for name in same} | {"compiled": False}
    again = planned_again(command_of(recorded()[0], run="gpt2-mini", job=job), tmp_path)
    assert (again.synchronisation, again.slow_ranks) == (first.synchronisation, first.slow_ranks)
