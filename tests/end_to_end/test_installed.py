"""The wheel in an environment of its own, outside the checkout, beside another distribution's package `kernels`.

The environment sees this one's dependencies by a .pth file, so nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.paths import ROOT
from tests.support.configurations import QWEN3_30B

pytest.importorskip("hatchling", reason="NOT RUN: the wheel is built by hatchling")
OURS = {"suite", "reference_runs", "kernels", "benchmarks", "tests", "deploy"}
# the names of Hugging Face's kernels 0.17.2
THEIR_MODULES = ("hf_hub", "layer", "load", "locking", "archs", "backends", "benchmark", "compat", "deps", "importer")
THEIR_MODULES += ("install", "python_deps", "resolver", "status", "validate", "variants", "verify", "cli", "benchmarks")


class Installed:
    """A fresh environment, and an empty directory to be in, which has packages of our names too."""

    def __init__(self, place: Path, wheels: list[Path]) -> None:
        self.python = place / "environment" / "bin" / "python"
        self.here, self.data = place / "elsewhere", place / "data"
        venv.create(place / "environment", symlinks=True)
        (self.packages,) = (place / "environment" / "lib").glob("python*/site-packages")
        shared = [path for path in sys.path if path.endswith("site-packages")]
        (self.packages / "dependencies.pth").write_text("\n".join(shared) + "\n", encoding="utf-8")
        for wheel in wheels:
            self.pip("install", "--no-index", "--no-deps", "--no-compile", str(wheel))
        for name in ("suite", "kernels"):
            (self.here / name).mkdir(parents=True)
            (self.here / name / "__init__.py").write_text("raise RuntimeError('the directory of the user')\n")

    def pip(self, *words: str) -> None:
        """Run pip on the environment."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), *words]
        done = subprocess.run(pip, capture_output=True, text=True, check=False, env=self.environment())
        assert done.returncode == 0, done.stderr

    def environment(self) -> dict[str, str]:
        """Nothing leads to the checkout."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return kept | {"XDG_DATA_HOME": str(self.data), "SUITE_CALIBRATE": "0"}

    def refruns(self, line: str, codes: tuple[int, ...] = (0,)) -> str:
        """Output of the console command."""
        return self.run([str(self.python.with_name("refruns")), *line.split()], codes)

    def code(self, text: str) -> str:
        """Output of a program of the user's."""
        return self.run([str(self.python), "-P", "-c", text])

    def run(self, command: list[str], codes: tuple[int, ...] = (0,)) -> str:
        """Output of a command in the user's directory."""
        done = subprocess.run(
            command, cwd=self.here, env=self.environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode in codes, (command, done.returncode, done.stderr[-2000:])
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def their_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A distribution `kernels` with the modules of Hugging Face's."""
    path = tmp_path_factory.mktemp("theirs") / "kernels-0.17.2-py3-none-any.whl"
    files = {f"kernels/{name}.py": f"WHOSE = 'theirs: {name}'\n" for name in THEIR_MODULES}
    files["kernels/__init__.py"] = "from kernels import hf_hub\n\ndef get_kernel(name):\n    return hf_hub.WHOSE\n"
    about = "kernels-0.17.2.dist-info"
    files[f"{about}/METADATA"] = "Metadata-Version: 2.1\nName: kernels\nVersion: 0.17.2\n"
    files[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, their_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Theirs first, then ours."""
    return Installed(tmp_path_factory.mktemp("installed"), [their_wheel, wheel])


def test_the_wheel_has_every_file_that_the_packages_have_and_one_name_at_the_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"refruns"}
    listed = subprocess.run(
        ["git", "ls-files", "suite", "reference_runs", "kernels", "deploy/reframe"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert [name for name in listed if f"refruns/_home/{name}" not in names] == []


@pytest.mark.parametrize("order", ["theirs first", "theirs after"])
def test_neither_package_is_overwritten_and_each_finds_its_own(
    order: str, installed: Installed, wheel: Path, their_wheel: Path, tmp_path: Path
) -> None:
    if order == "theirs after":
        installed = Installed(tmp_path, [wheel, their_wheel])
    assert not {path.name for path in installed.packages.iterdir()} & (OURS - {"kernels"})
    assert installed.code("import kernels; print(kernels.get_kernel('any'))") == "theirs: hf_hub\n"
    program = "import refruns, kernels; print(len(refruns.runs()) > 20, kernels.get_kernel('any'))"
    assert installed.code(program) == "True theirs: hf_hub\n"
    program = (
        "import importlib.util\nfrom refruns.one_bit import OneBitAdam\nimport kernels, kernels.bits\n"
        "print(OneBitAdam.__name__, kernels.get_kernel('any'), '_home' in kernels.bits.__file__)\n"
    )
    assert installed.code(program) == "OneBitAdam theirs: hf_hub True\n"
    assert not {path.stem for path in (ROOT / "kernels").glob("*.py")} - {"__init__"} & {*THEIR_MODULES}
    version = installed.refruns("--version")
    assert version == "llm-reference-runs 0.2.0 (no checkout)\n"
    assert installed.run([str(installed.python), "-P", "-m", "refruns", "--version"]) == version


def test_commands_work_outside_of_a_checkout(installed: Installed) -> None:
    assert "bloom-176b" in installed.refruns("runs")
    assert "fits" in installed.refruns("predict bloom-176b")
    assert "fits" in installed.refruns("fit gpt2-124m --on h100-sxm --gpus 2")
    assert "layout" in installed.refruns("plan gpt2-124m --on h100-sxm --gpus 2")
    (installed.here / "config.json").write_text(json.dumps(QWEN3_30B), encoding="utf-8")
    installed.refruns("import config.json --output imported.toml")
    assert "30,532,122,624 parameters" in installed.refruns("show imported.toml")
    assert "Usage: refruns predict" in installed.refruns("predict --help")
    assert "refruns results list" in installed.refruns("results list --help")
    command = [str(installed.python.with_name("refruns")), "refit", "--write"]
    assert installed.run(command, codes=(2,)) == ""


@pytest.mark.ranks
def test_ranks_find_our_kernels_and_the_page_is_written(installed: Installed) -> None:
    printed = installed.refruns("reproduce bloom-mini --steps 6 --device cpu --ranks 2")
    assert "bloom-mini: pass" in printed
    printed = installed.refruns("reproduce gpt2-mini --optimizer one-bit-adam --steps 7 --device cpu --ranks 2")
    assert "gpt2-mini: pass" in printed  # a rank of it imports `kernels.bits`
    results = installed.data / "llm-reference-runs" / "results"
    assert len(installed.refruns("results list").splitlines()) == 3
    pytest.importorskip("plotly", reason="NOT RUN: the page needs the extra report")
    assert "index.html" in installed.refruns("report", codes=(0, 3))
    assert (results / "index.html").stat().st_size > 100_000


def test_explore_answers_a_request(installed: Installed) -> None:
    if importlib.util.find_spec("dash") is None:
        pytest.skip("NOT RUN: explore needs the extra of its name; `nox -s page` has it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(installed.python.with_name("refruns")), "explore", "--port", str(port)]
    served = subprocess.Popen(command, cwd=installed.here, env=installed.environment(), stderr=subprocess.PIPE)
    try:
        page = _eventually(lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20).read())
        assert b"_dash-config" in page
    finally:
        served.send_signal(signal.SIGTERM)
        served.communicate(timeout=20)


def _eventually(asked: Callable[[], bytes]) -> bytes:
    for _ in range(200):
        try:
            return asked()
        except OSError:
            time.sleep(0.1)
    return asked()


def test_an_editable_installation_runs_the_checkout_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    def untracked() -> str:
        command = ["git", "status", "--porcelain", "--untracked-files=all"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    before = untracked()
    editable = Installed(tmp_path, [])
    editable.pip("install", "--no-index", "--no-deps", "--no-compile", "--no-build-isolation", "--editable", str(ROOT))
    assert editable.code("import refruns; print(refruns.HOME)") == f"{ROOT}\n"
    assert "bloom-176b" in editable.refruns("runs")
    assert untracked() == before
