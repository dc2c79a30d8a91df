"""Tests stand where their subject stands: tests/ROOM/test_MODULE.py, or test_MODULE_of_WHAT.py for a part of it."""

from __future__ import annotations

from pathlib import Path

from suite.paths import ROOT

ROOMS_OF_TESTS = {"end_to_end", "meta", "simulated_cuda", "support"}  # several rooms at once; no room; no tests
BESIDE_SUITE = {"benchmarks", "kernels", "reference_runs"}
OF_SEVERAL_MODULES = {
    "commands/test_bad_input.py": "what every command refuses",
    "commands/test_output_errors.py": "what every command does where it cannot print",
    "kernels/test_compilation.py": "that every kernel compiles for a GPU",
    "kernels/test_memory.py": "that no kernel writes beside its results",
    "kernels/test_rows.py": "that all norms and activations are exact, by one table",
}


def modules(directory: Path) -> set[str]:
    """Modules and packages in a directory, without private ones' underscore."""
    return {path.stem.lstrip("_") for path in directory.iterdir() if path.suffix == ".py" or path.is_dir()}


def without_module(tests: Path) -> list[str]:
    """Test files, relative to tests/, that are named for no module of the directory that they mirror."""
    strays = []
    for path in sorted(tests.rglob("test_*.py")):
        relative = path.relative_to(tests)
        if relative.parts[0] in ROOMS_OF_TESTS:
            continue
        mirrored = (ROOT if relative.parts[0] in BESIDE_SUITE else ROOT / "suite") / relative.parent
        name = path.stem.removeprefix("test_")
        subjects = modules(mirrored) if mirrored.is_dir() else set()
        if not any(name == subject or name.startswith(f"{subject}_") for subject in subjects):
            strays.append(relative.as_posix())
    return strays


def test_every_test_file_is_named_for_a_module_of_its_room_or_says_why_not() -> None:
    assert without_module(ROOT / "tests") == sorted(OF_SEVERAL_MODULES)


def test_a_file_without_its_module_is_named(tmp_path: Path) -> None:
    names = (
        "records/test_index.py",
        "records/test_index_of_all.py",
        "records/test_indexes.py",
        "nowhere/test_index.py",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert without_module(tmp_path) == ["nowhere/test_index.py", "records/test_indexes.py"]
