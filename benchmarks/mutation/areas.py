"""Areas that are mutated, the score that is wanted there, and the few fast tests that must notice."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from reference_runs.errors import InputError


class Area(NamedTuple):
    """The least share of its mutants that tests must find, and the tests beside those of its modules that may.

    Args:
        starts_ranks: tests run most of it in processes that they start, where no line is followed: a mutant gets all
            tests of its module.
    """

    wanted: float
    also: tuple[str, ...] = ()
    starts_ranks: bool = False


AREAS = {
    "suite/metrics": Area(0.95, ("tests/metrics", "tests/regression")),
    "suite/predict/analytic": Area(0.95, ("tests/predict/analytic",)),
    "suite/regression": Area(0.95, ("tests/regression",)),
    "suite/acceptance/judge": Area(0.95, ("tests/acceptance/judge",)),
    "suite/records": Area(0.90, ("tests/records", "tests/commands/test_results.py")),
    "suite/execute/parallel/one_bit": Area(0.90, starts_ranks=True),
    "kernels": Area(0.90, ("tests/kernels/test_memory.py", "tests/kernels/test_operator.py")),
}
ELSEWHERE = Area(0.90)
FEW = 6  # modules, whose own tests are run to see what they run: all of an area take minutes

# Modules that have no test file of their name, and modules that others' tests check too
ALSO = {
    "suite/acceptance/judge/causes.py": (
        "tests/acceptance/judge/test_gpu_health.py",
        "tests/acceptance/judge/test_node_health.py",
    ),
    "suite/acceptance/judge/gpu_clocks.py": ("tests/acceptance/judge/test_gpu_health.py",),
    "suite/acceptance/judge/launch_errors.py": ("tests/commands/test_accept_of_gpus.py",),
    "suite/acceptance/judge/loopback.py": ("tests/acceptance/test_nic_loopback.py",),
    "suite/acceptance/judge/nics.py": ("tests/acceptance/judge/test_node_health.py",),
    "suite/records/in_processes.py": ("tests/records/test_index.py",),
    "suite/metrics/change_points.py": ("tests/metrics/test_change_points.py", "tests/regression/test_segments.py"),
    "suite/metrics/figures.py": ("tests/metrics/test_figures.py", "tests/metrics/test_comparison.py"),
    "suite/predict/analytic/collective_time.py": (
        "tests/predict/analytic/test_collective_time.py",
        "tests/predict/analytic/test_step_time.py",
    ),
    "suite/predict/analytic/exposed_messages.py": ("tests/predict/analytic/test_step_time_terms.py",),
    "suite/predict/analytic/gradient_buckets.py": ("tests/predict/analytic/test_traffic.py",),
    "suite/predict/analytic/layer_parameters.py": ("tests/predict/analytic/test_parameters.py",),
    "suite/predict/analytic/layer_products.py": ("tests/predict/analytic/test_step_time_terms.py",),
    "suite/predict/analytic/layer_time.py": ("tests/predict/analytic/test_step_time_terms.py",),
    "suite/predict/analytic/micro_batch.py": ("tests/predict/analytic/test_activations.py",),
    "suite/predict/analytic/pipeline_schedule.py": (
        "tests/predict/analytic/test_pipeline_schedule.py",
        "tests/predict/simulation/test_pipeline_schedule.py",
        "tests/predict/simulation/test_weight_versions.py",
    ),
    "suite/predict/analytic/process_groups.py": (
        "tests/predict/analytic/test_collective_time.py",
        "tests/predict/analytic/test_traffic.py",
        "tests/predict/analytic/test_traffic_of_tensor_parallel.py",
    ),
    "suite/predict/analytic/stage_computation.py": ("tests/predict/analytic/test_step_time_terms.py",),
    "suite/predict/analytic/stage_memory.py": ("tests/predict/analytic/test_memory.py",),
    "suite/regression/baselines.py": ("tests/commands/test_regress.py",),
    **dict.fromkeys(
        ("suite/regression/check.py", "suite/regression/turns.py", "suite/regression/remedies.py"),
        ("tests/commands/test_regress.py", "tests/commands/test_regress_until_decided.py"),
    ),
    "suite/regression/comparability.py": ("tests/regression/test_segments.py", "tests/commands/test_regress.py"),
    "suite/regression/findings.py": ("tests/regression/test_verdicts.py", "tests/commands/test_regress.py"),
    "suite/acceptance/judge/virtual_machines.py": ("tests/acceptance/judge/test_judge_of_virtual_machines.py",),
    "suite/acceptance/judge/launches.py": ("tests/acceptance/judge/test_judge.py",),
    "suite/records/diff.py": ("tests/commands/test_results.py",),
    "suite/records/export.py": ("tests/commands/test_results.py",),
    "suite/records/kernel_runs.py": ("tests/regression/test_kernel_benchmarks.py",),
    "suite/records/merge.py": ("tests/commands/test_results.py",),
    "suite/records/prune.py": ("tests/commands/test_results.py",),
    "suite/records/query.py": ("tests/commands/test_results.py",),
    "suite/records/summary.py": ("tests/records/test_index.py", "tests/records/test_index_of_damaged_records.py"),
    "suite/execute/parallel/one_bit/all_reduce.py": ("tests/execute/parallel/one_bit/test_adam.py",),
    "suite/execute/parallel/one_bit/buckets.py": ("tests/execute/parallel/one_bit/test_adam.py",),
    "suite/execute/parallel/one_bit/schedule.py": ("tests/execute/parallel/one_bit/test_adam.py",),
    **{
        f"kernels/{norm}.py": ("tests/kernels/test_rows.py", "tests/kernels/test_row_norm.py")
        for norm in ("layer_norm", "parallel_layer_norms", "residual_layer_norm", "residual_rms_norm", "rms_norm")
    },
    **{
        f"kernels/{activation}.py": ("tests/kernels/test_rows.py", "tests/kernels/test_bias_activation.py")
        for activation in ("bias_activation", "gated_activation", "geglu", "swiglu")
    },
    "kernels/interpreter.py": ("tests/kernels/test_bias_activation.py",),
    "kernels/operator.py": ("tests/kernels/test_rows.py",),
    "kernels/row_norm.py": (
        "tests/kernels/test_rows.py",
        "tests/kernels/test_row_norm.py",
        "tests/kernels/test_memory.py",
    ),
    "kernels/tensor_table.py": ("tests/kernels/test_adamw.py",),
    "kernels/tiles.py": ("tests/kernels/test_cross_entropy.py",),
    **{
        f"reference_runs/{name}.py": (
            "tests/reference_runs/test_published_of_odd_tables.py",
            f"tests/reference_runs/test_{own}.py",
        )
        for name, own in (
            ("published", "published_words"),
            ("published_as_written", "published_words"),
            ("published_cells", "published_words"),
            ("published_readings", "published_words"),
            ("published_run", "published"),
            ("published_shape", "named_runs"),
            ("published_tables", "published"),
            ("published_words", "published"),
        )
    },
    **{
        f"reference_runs/{name}.py": (
            "tests/reference_runs/test_recorded_file_of_broken_files.py",
            "tests/reference_runs/test_published_words.py",
        )
        for name in (
            "accelerator",
            "accelerator_words",
            "catalog",
            "machine_model",
            "named_runs",
            "recorded_file",
            "stack",
        )
    },
}


def wanted_score(module: str) -> float:
    """The share of a module's mutants that its tests must find."""
    return AREAS.get(area_of(module), ELSEWHERE).wanted


def area_of(module: str) -> str:
    """The area that a module belongs to; its own directory where it is in none."""
    return next((area for area in AREAS if module.startswith(f"{area}/")), str(Path(module).parent))


def modules_of(root: Path, paths: list[str]) -> list[str]:
    """Python modules at and below the paths, relative to the root; without those that hold nothing but a docstring.

    Raises:
        InputError: a path is not there, or not below the root.
    """
    found: list[str] = []
    for name in paths:
        path = (root / name).resolve()
        if not path.exists() or not path.is_relative_to(root.resolve()):
            raise InputError("no module of this checkout", got=name, allowed=", ".join(AREAS), where="PATH")
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        found += [str(file.relative_to(root.resolve())) for file in files if file.name != "__init__.py"]
    return list(dict.fromkeys(found))


def files_of_area(root: Path, area: str, modules: list[str]) -> list[str]:
    """Test files and directories whose tests are collected for modules of an area; for few modules their own alone."""
    own = [name for module in modules for name in tests_of(root, module)]
    also = AREAS.get(area, ELSEWHERE).also if len(modules) > FEW else ()
    below = tuple(f"{place}/" for place in also)
    return list(dict.fromkeys([*also, *(name for name in own if not name.startswith(below))]))


def tests_of(root: Path, module: str) -> list[str]:
    """The test files that must notice what is broken in a module: those of its name, and those listed for it.

    `tests/ROOM/test_MODULE.py` and `test_MODULE_of_WHAT.py`; of two modules the longer name has the file.
    """
    path = Path(module)
    mirrored = root / "tests" / (path.relative_to("suite") if path.parts[0] == "suite" else path).parent
    names = {other.stem for other in (root / path.parent).glob("*.py")}
    own = []
    for test in sorted(mirrored.glob(f"test_{path.stem}*.py")):
        subject = test.stem.removeprefix("test_")
        owners = [name for name in names if subject == name or subject.startswith(f"{name}_")]
        if owners and max(owners, key=len) == path.stem:
            own.append(str(test.relative_to(root)))
    also = [name for name in ALSO.get(module, ()) if (root / name).exists()]
    return list(dict.fromkeys([*own, *also]))
