"""Tests stand where their subject stands: tests/ROOM/test_MODULE.py, or test_MODULE_of_WHAT.py for a part of it."""

from __future__ import annotations

from pathlib import Path

from suite.paths import ROOT

ROOMS_OF_TESTS = {"end_to_end", "meta", "simulated_cuda", "support"}  # several rooms at once; no room; no tests
BESIDE_SUITE = {"benchmarks", "kernels", "reference_runs"}
OF_SEVERAL_MODULES = {
    "commands/test_bad_input.py": "what every command refuses",
    "commands/test_extreme_values.py": "that every number of a run file and of the options has a range",
    "commands/test_hostile_text.py": "that no command passes on what a terminal or a spreadsheet would obey",
    "commands/test_output_errors.py": "what every command does where it cannot print",
    "execute/trace/test_peaks.py": "that a trace's peak is that of PyTorch's allocator",
    "execute/trace/test_published_peaks.py": "that a trace's peak is what others published",
    "kernels/test_compilation.py": "that every kernel compiles for a GPU",
    "kernels/test_memory.py": "that no kernel writes beside its results",
    "kernels/test_rows.py": "that all norms and activations are exact, by one table",
}


def modules(directory: Path) -> set[str]:
    """Modules and packages in a directory, without private ones' underscore."""
    return {path.stem.lstrip("_") for path in directory.iterdir() if path.suffix == ".py" or path.is_dir()}


def test_every_test_file_is_named_for_a_module_of_its_room_or_says_why_not() -> None:
    strays = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        relative = path.relative_to(ROOT / "tests")
        if relative.parts[0] in ROOMS_OF_TESTS:
            continue
        mirrored = (ROOT if relative.parts[0] in BESIDE_SUITE else ROOT / "suite") / relative.parent
        name = path.stem.removeprefix("test_")
        subjects = modules(mirrored) if mirrored.is_dir() else set()
        if not any(name == subject or name.startswith(f"{subject}_") for subject in subjects):
            strays.append(relative.as_posix())
    assert strays == sorted(OF_SEVERAL_MODULES)
