"""Nothing unpickles a file that a user can name, and no shell reads a command."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.paths import ROOT

PACKAGES = ("suite", "reference_runs", "kernels", "benchmarks", ".ci")
UNPICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "jsonpickle"}
READS_METADATA = "suite/execute/training/checkpoint.py"  # by an unpickler that knows a few of PyTorch's classes alone
READS_RECORDINGS = "suite/launch/flight_recorder.py"  # by one that knows none
WRITES_SNAPSHOTS = "suite/predict/timeline/memory_snapshot.py"  # and reads none
COMPILES_MUTANTS = ("benchmarks/mutation/mutants.py", "benchmarks/mutation/swap.py")  # of the project's own text
SHELLS = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell",
}
EVALUATION = {"eval", "exec", "compile", "__import__"}


def dangers(text: str) -> Iterator[str]:
    """Calls and imports of a module that run code from a file, or a command through a shell."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (f"imports {each.name}" for each in names if each.name.partition(".")[0] in UNPICKLING)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in UNPICKLING:
                yield f"imports from {module}"
            case ast.Call(func=function, keywords=keywords):
                name = ast.unparse(function)
                said = {keyword.arg: ast.unparse(keyword.value) for keyword in keywords}
                if said.get("shell", "False") != "False" or name in SHELLS:
                    yield f"a shell: {name}"
                if name == "torch.load" and said.get("weights_only") != "True":
                    yield "torch.load without weights_only=True"
                if name.endswith(("read_pickle", "load")) and said.get("allow_pickle", "False") != "False":
                    yield f"{name} with allow_pickle"
                if name.endswith("read_pickle") or name in EVALUATION:
                    yield name
            case _:
                pass


def test_nothing_runs_code_from_a_file_or_a_command_through_a_shell() -> None:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): sorted(set(dangers(path.read_text(encoding="utf-8")))) for path in paths}
    wanted = {name: ["imports pickle"] for name in (READS_METADATA, READS_RECORDINGS, WRITES_SNAPSHOTS)} | {
        key: ["compile"] for key in COMPILES_MUTANTS
    }
    assert {name: lines for name, lines in found.items() if lines} == wanted
    assert {Path(name).parts[0] for name in found} == set(PACKAGES)


@pytest.mark.parametrize(
    ("path", "name"), [(READS_METADATA, "MetadataUnpickler"), (READS_RECORDINGS, "PlainUnpickler")]
)
def test_pickles_are_read_by_an_unpickler_that_refuses_all_but_what_it_knows(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {each for each in used if each.startswith("pickle.")} == {"pickle.UnpicklingError", "pickle.Unpickler"}
    [unpickler] = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    assert [ast.unparse(base) for base in unpickler.bases] == ["pickle.Unpickler"]
    assert [each.name for each in unpickler.body if isinstance(each, ast.FunctionDef)] == ["find_class"]


def test_each_danger_is_seen_and_what_is_safe_is_passed_over() -> None:
    dangerous = {
        "import pickle": ["imports pickle"],
        "from dill import loads": ["imports from dill"],
        "torch.load(path)": ["torch.load without weights_only=True"],
        "torch.load(path, weights_only=False)": ["torch.load without weights_only=True"],
        "numpy.load(path, allow_pickle=True)": ["numpy.load with allow_pickle"],
        "subprocess.run(words, shell=True)": ["a shell: subprocess.run"],
        "os.system(words)": ["a shell: os.system"],
        "pandas.read_pickle(path)": ["pandas.read_pickle"],
        "eval(text)": ["eval"],
        "torch.load(path, weights_only=True); subprocess.run(words); model.eval(); numpy.load(path)": [],
    }
    assert {text: list(dangers(text)) for text in dangerous} == dangerous
