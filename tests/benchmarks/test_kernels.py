"""The benchmark of kernels: cases join their least bytes, turns are fair, failures are reported, and tables add up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.kernels import turns
from benchmarks.kernels.case import SELECTION, Case, Draw
from benchmarks.kernels.registry import cases
from benchmarks.kernels.table import microseconds, ratio, rows, table
from benchmarks.kernels.turns import COPY, UnequalWorkError, contenders, last_cache_bytes, measured, tensors
from kernels.operator import INTERPRETED
from suite.paths import ROOT
from suite.predict.analytic.kernel_cost import kernel_bytes
from suite.records.kernel_runs import STEP_PART

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SMALLEST = list({(o.kernel, o.variant): o for o in reversed(list(cases(CPU))) if o.kernel != STEP_PART}.values())


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def case(**changes: Any) -> Case:
    small = Case(
        kernel="layer_norm",
        dtype="fp32",
        sizes={"rows": 4, "columns": 8, "element_bytes": 4},
        over="columns",
        inputs=lambda draw: (draw.normal(4, 8, dtype=torch.float32),),
        ours=doubled,
        plain=doubled,
        eager=lambda x: x + x,
    )
    return replace(small, **changes)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled, and the copy is small."""
    for name in ("case.compiled", "attention.compiled"):
        monkeypatch.setattr(f"benchmarks.kernels.{name}", lambda function: function)
    monkeypatch.setitem(turns.COPY_BYTES, "cpu", 2**20)


@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_every_case_has_a_name_of_its_own_and_joins_its_least_bytes(device: torch.device) -> None:
    every = list(cases(device))
    others = {"bits", "gated_activation", "half_matmul", "interpreter", "operator", "row_norm"}
    others |= {"special_functions", "tensor_table", "tiles"}
    others |= {"cublaslt", "linear_epilogues"}  # GEMMs, which are parts of a step
    assert {one.kernel for one in every} - {STEP_PART} == {
        path.stem for path in (ROOT / "kernels").glob("[a-z]*.py")
    } - others
    assert len({case.name for case in every}) == len(every)
    for one in every:
        least = kernel_bytes(one.formula or one.kernel, **one.sizes)
        assert least.forward > 0
        assert ("backward" in one.passes) == (least.backward is not None)
        assert one.sizes[one.over] > 0


def test_a_partial_rotation_copies_the_dims_that_do_not_turn_and_its_bytes_count_them() -> None:
    (one,) = (case for case in SMALLEST if (case.kernel, case.variant) == ("rotary", "neox"))
    q, k, rotation = one.inputs(Draw(CPU))
    assert rotation.shape[-1] < q.shape[-1]
    moved = sum(tensor.nbytes for tensor in (q, k, *one.plain(q, k, rotation)))
    assert kernel_bytes("rotary", **one.sizes).forward == moved


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("one", SMALLEST, ids=lambda one: one.name)
def test_functions_of_a_case_compute_the_same_on_what_its_bytes_count(
    one: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"kernels.{one.kernel}.runs_triton", lambda _: False)  # as on a CPU: not interpreted
    draw = Draw(CPU)
    inputs = one.inputs(draw)
    read = sum(tensor.nbytes for tensor in tensors(inputs))
    small = 8192  # weights and biases of rows, scales and factors
    assert read <= kernel_bytes(one.formula or one.kernel, **one.sizes).forward + small
    functions, errors, _ = contenders(one, [inputs], draw)
    assert not errors
    assert list(functions) == list(one.functions(CPU))


def test_on_a_cpu_the_reference_stands_for_the_kernel_and_is_not_timed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(case().functions(CPU)) == ["plain", "eager", "compiled"]
    assert list(case(eager=doubled).functions(CPU)) == ["plain", "compiled"]
    assert list(case(eager=doubled).functions(CUDA)) == ["kernel", "eager", "compiled"]
    monkeypatch.setattr(SELECTION, "left_out", {"compiled"})
    assert list(case().functions(CPU)) == ["plain", "eager"]


@pytest.mark.parametrize("differentiated", [0, 1])
def test_turns_go_there_and_back_on_rotating_inputs(differentiated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, int]] = []

    def reported(name: str) -> Callable[[Tensor], Tensor]:
        def function(x: Tensor) -> Tensor:
            called.append((name, x.data_ptr()))
            return 2 * x

        return function

    monkeypatch.setattr(turns, "last_cache_bytes", lambda _: 3 * 4 * 8 * 4 // 2)  # three sets
    timed = case(
        ours=reported("plain"), eager=reported("eager"), compilable=reported("compiled"), differentiated=differentiated
    )
    found = measured(timed, CPU, seconds=0)
    count = turns.LEAST_ROUNDS
    for measurement in found.values():
        assert {name: len(samples) for name, samples in measurement.seconds.items()} == dict.fromkeys(
            ("plain", "eager", "compiled", COPY), count
        )
        assert all(len(samples) >= 4 for samples in measurement.warm_up.values())
    last = called[-3 * count :]
    forth = ["plain", "eager", "compiled"]
    assert [name for name, _ in last] == [name for r in range(count) for name in (forth if r % 2 == 0 else forth[::-1])]
    places = [place for name, place in last if name == "eager"]
    assert len(set(places)) == 3
    assert places[:3] == places[3:6]


def test_a_function_without_a_backward_pass_is_compared_and_timed_forward_alone() -> None:
    forward_alone = {"half": lambda: lambda x: 2 * x.detach(), "wrong": lambda: lambda x: 3 * x.detach()}
    found = measured(case(fused=forward_alone, forward_alone=("half", "wrong"), differentiated=1), CPU, seconds=0)
    assert set(found["forward"].seconds) == {"plain", "eager", "compiled", "half", COPY}
    assert set(found["backward"].seconds) == {"plain", "eager", "compiled", COPY}
    assert list(found["forward"].errors) == ["wrong"]


def test_a_function_that_fails_or_computes_something_else_is_left_out_and_the_others_are_timed() -> None:
    def fails(_: Tensor) -> Tensor:
        raise RuntimeError("no such instruction")

    found = measured(case(eager=fails, compilable=lambda x: 2.1 * x), CPU, seconds=0)["forward"]
    assert set(found.seconds) == {"plain", COPY}
    assert str(found.errors["eager"]) == "no such instruction"
    assert isinstance(found.errors["compiled"], UnequalWorkError)
    assert "compiled: result 0 is 0.05 off" in str(found.errors["compiled"])


@pytest.mark.parametrize(
    "other",
    [lambda x: (2 * x, x), lambda x: (2 * x)[:2], lambda x: 2 * x + float("nan"), lambda x: 2 * x.detach() + 0 * x],
    ids=["two results", "another shape", "not a number", "other gradients"],
)
def test_equal_outputs_and_equal_gradients_are_asked_for(other: Callable[[Tensor], Any]) -> None:
    found = measured(case(eager=other, compilable=doubled, differentiated=1), CPU, seconds=0)
    for measurement in found.values():
        assert list(measurement.errors) == ["eager"]
        assert set(measurement.seconds) == {"plain", "compiled", COPY}


def test_inputs_changed_in_place_are_compared_too_and_copied_where_a_call_spoils_them() -> None:
    def in_place(x: Tensor) -> None:
        x.mul_(2)

    def not_in_place(x: Tensor) -> None:
        x.mul(2)

    found = measured(case(ours=in_place, eager=not_in_place, compilable=in_place), CPU, seconds=0)["forward"]
    assert list(found.errors) == ["eager"]
    seen: list[float] = []

    def spoils(x: Tensor) -> Tensor:
        seen.append(float(x.abs().max()))
        return x.zero_()

    measured(case(ours=spoils, eager=spoils, consumed=True), CPU, seconds=0)
    assert min(seen) > 0
    found = measured(case(ours=spoils, eager=torch.zeros_like, consumed=True), CPU, seconds=0)["forward"]
    assert not found.errors  # what is spoiled is no result


def test_inputs_are_rotated_through_more_than_the_caches() -> None:
    assert turns._sets((torch.empty(last_cache_bytes(CPU), dtype=torch.int8),), CPU) == 2
    assert turns._sets(([torch.empty(last_cache_bytes(CPU) // 10, dtype=torch.int8)],), CPU) in (20, 21)
    assert turns._sets((torch.empty(1),), CPU) == turns.MOST_ROUNDS


def test_the_bootstrap_interval_holds_the_ratio_and_narrows_with_agreement() -> None:
    ours = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0]
    steady = ratio([2 * sample for sample in ours], ours)
    assert steady == (2, 2, 2)  # rounds are drawn in pairs, and each has this ratio: medians of the same round
    noisy = ratio([2.0, 3.0, 2.5, 1.5, 2.2, 2.1, 1.9], ours)
    assert noisy.low < noisy.ratio < noisy.high
    assert noisy == ratio([2.0, 3.0, 2.5, 1.5, 2.2, 2.1, 1.9], ours)
    # With 5 rounds of which at least 3 are the largest in 1 - P(B <= 2) of draws, B binomial (5, 1 / 5): 5.8 %, more
    # than 2.5 %, so the upper end is the largest ratio
    assert ratio([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5).high == 5


def stored(
    form: str, samples: list[float], *, which: str = "forward", columns: int = 8, **facts: Any
) -> dict[str, Any]:
    extra: dict[str, Any] = {
        "kernel": "layer_norm",
        "variant": "",
        "dtype": "bf16",
        "pass": which,
        "form": form,
        "sizes": {"rows": 4, "columns": columns, "element_bytes": 2},
        "over": "columns",
        "device": "cuda",
        "least_bytes": 128,
        "copy_bytes_per_second": 1e9,
        "host_seconds": 5e-6,
        "warm_up_seconds": [1.0],
    }
    group = f"layer_norm-bf16-4x{columns}-{which}"
    return {"group": group, "stats": {"data": samples}, "extra_info": extra | facts}


def record(*benchmarks: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmarks": list(benchmarks),
        "machine_info": {"gpu": "H", "torch": "2.11"},
        "commit_info": {"id": "0123456789abcdef", "dirty": True},
        "datetime": "2026-11-22T00:00:00+00:00",
        "failures": {"layer_norm-fp32": "RuntimeError: no"},
    }


def test_a_row_has_median_share_and_ratio_by_hand() -> None:
    ours, eager = rows(record(stored("kernel", [1e-6, 4e-7, 2e-7]), stored("eager", [8e-7, 8e-7, 8e-7])))
    assert ours.seconds == 4e-7
    assert ours.share == pytest.approx(128 / 4e-7 / 1e9)
    assert ours.ratio is None
    assert eager.ratio is not None
    assert eager.ratio.ratio == pytest.approx(2)
    assert (eager.size, eager.rounds, eager.is_base, ours.is_base) == (8, 3, False, True)


def test_the_table_has_one_line_a_pass_of_a_case() -> None:
    text = table(
        record(
            stored("kernel", [4e-7] * 3),
            stored("eager", [8e-7] * 3),
            stored("liger", [1e-6] * 3),
            stored("eager", [3e-3] * 3, which="backward"),
        )
    )
    assert (
        "| layer_norm | forward | bf16 | rows=4 columns=8 | 0.4 us | 32.0% | 5 us | 3 "
        "| 2.00 [2.00, 2.00] | 2.50 [2.50, 2.50] |"
    ) in text
    assert [microseconds(seconds) for seconds in (1.23456e-4, 1.23456e-1, None)] == ["123.5 us", "123,456 us", "-"]
    assert "| layer_norm | backward | bf16 | rows=4 columns=8 | - | - | - | - | - | - |" in text
    assert "Commit 0123456789ab with uncommitted changes. gpu H, torch 2.11." in text
    assert "- `layer_norm-fp32`: RuntimeError: no" in text


def test_parts_of_a_step_have_a_line_a_way_with_rates_and_their_time_over_pytorchs() -> None:
    part = {"kernel": STEP_PART, "variant": "linear_gelu", "flop": 4e8, "least_bytes": 2e6}
    text = table(
        record(stored("plain", [4e-3] * 3, **part), stored("epilogues+tuned-gemms", [1e-3] * 3, **part))
        | {"lacking": ["without packed-gradients: no cudnn"]}
    )
    size = "linear_gelu | forward | bf16 | rows=4 columns=8"
    assert f"| {size} | plain | 4,000 us | 0.5 | 0.1 | 5 us | 3 | - |" in text
    assert f"| {size} | epilogues+tuned-gemms | 1,000 us | 2 | 0.4 | 5 us | 3 | 0.25 [0.25, 0.25] |" in text
    assert "- without packed-gradients: no cudnn" in text
    assert "| kernel |" not in text


BENCH = """
import sys
import torch
from benchmarks.kernels import case, registry, step_parts, turns
case.compiled = lambda function: function
step_parts.in_step = lambda function, device, **options: function
turns.COPY_BYTES["cpu"] = 2**20

def fails(x):
    raise RuntimeError("no such instruction")

def of(name, eager):
    return case.Case(kernel="gradient_norm", variant=name, dtype="fp32",
        sizes={"parameters": 1000, "gradient_bytes": 4}, over="parameters",
        inputs=lambda draw: (draw.normal(1000, dtype=torch.float32),),
        ours=torch.relu, plain=torch.relu, eager=eager, compilable=torch.relu)

between = next(one for one in step_parts.cases(torch.device("cpu")) if one.variant == "between_blocks")
registry.cases = lambda device: iter([of("bad", fails), of("good", lambda x: x.clamp(min=0)), between])
from benchmarks.kernels.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


# pytest-benchmark times nothing in a worker of these tests
NOT_PASSED_ON = {"TRITON_INTERPRET", "PYTEST_XDIST_WORKER"}


def bench(storage: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The benchmark of three cases, and the file that it stores."""
    done = subprocess.run(
        [sys.executable, "-c", BENCH, f"--benchmark-storage={storage}", *options],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in NOT_PASSED_ON},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (path,) = storage.rglob("*.json")
    return done, path


@pytest.mark.ranks
def test_optimizations_select_parts_of_a_step_and_what_is_left_out_is_not_asked_for(tmp_path: Path) -> None:
    done, path = bench(tmp_path / "parts", "--optimizations", "across-blocks")
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert [(b["extra_info"]["variant"], b["extra_info"]["form"]) for b in kept["benchmarks"]] == [
        ("between_blocks", "plain")
    ]
    assert kept["lacking"] == ["without across-blocks: no CUDA device"]
    assert "- without across-blocks: no CUDA device" in done.stdout
    done, path = bench(tmp_path / "kernels", "--without-compiled", "-k", "good")
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert [b["extra_info"]["form"] for b in kept["benchmarks"]] == ["plain", "eager"]


@pytest.mark.ranks  # takes its time, which is not judged
def test_an_error_in_one_case_ends_in_the_exit_code_and_the_others_are_stored(tmp_path: Path) -> None:
    done, path = bench(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    kept = json.loads(path.read_text(encoding="utf-8"))
    forms = {(b["extra_info"]["variant"], b["extra_info"]["form"]) for b in kept["benchmarks"]}
    assert forms == {
        *(("bad", form) for form in ("plain", "compiled")),
        *(("good", form) for form in ("plain", "eager", "compiled")),
        ("between_blocks", "plain"),
    }
    assert kept["failures"] == {"gradient_norm-bad-fp32-1000-forward-eager": "RuntimeError: no such instruction"}
    assert "node" not in kept["machine_info"]
    assert path.read_text(encoding="utf-8").count("\n") == 1
    assert set(kept["commit_info"]) <= {"id", "time", "dirty"}
    assert str(ROOT) not in path.read_text(encoding="utf-8")
    assert all(sample == round(sample, 9) for b in kept["benchmarks"] for sample in b["stats"]["data"])
    assert kept["machine_info"]["device"] == "cpu"
    assert all(len(b["stats"]["data"]) >= turns.LEAST_ROUNDS for b in kept["benchmarks"])
    assert path.with_suffix(".md").read_text(encoding="utf-8") in done.stdout
    assert path.with_name(f"{path.stem}-gradient_norm.svg").exists()


def test_help_says_what_the_command_does_and_that_all_else_is_pytests(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.kernels.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert text.startswith("usage: python -m benchmarks.kernels [--without-compiled] [--optimizations NAMES]")
    assert "Time the kernels, store what came of it" in text
    assert text.endswith("Everything else goes to pytest: python -m pytest --help\n")


def test_the_interpreter_is_not_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.kernels.__main__ import main

    if INTERPRETED:
        assert main([f"--benchmark-storage={tmp_path}"]) == 2
        assert capsys.readouterr().err == "error: TRITON_INTERPRET: allowed unset, got 1\n"
