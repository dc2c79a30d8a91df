"""One short session per job; arguments after -- go straight to the command."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2024.4.15"
nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["tests"]

CONSTRAINTS = "constraints.txt"
AXE_CORE = "4.14.1"  # accessibility rules, from npm
RUNS = ("bloom", "opt", "glm", "codegeex", "gpt-neox", "mt-nlg", "gpt2")
RECORDED = "results/recorded"  # the project's own results, committed
PROJECT = nox.project.load_toml("pyproject.toml")
SIMULATED = "tests/simulated_cuda"
TESTED = ("execute", "models", "kernels", "test", "fit", "regress", "tables", "report", "fleet")
PYTEST = ("python", "-m", "pytest")
SIDE_BY_SIDE = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "--benchmark-disable")
CUDNN_FRONT_END = "nvidia-cudnn-frontend==1.18.0"  # later ones need packages that compile kernels
OLDEST = ("2.11.0", "3.6.0")  # PyTorch, and the Triton that it comes with


def install(session: nox.Session, *groups: str) -> None:
    """Install the dependencies and the named groups, at the versions in constraints.txt, once for each virtualenv.

    Bytecode is made of what is imported, and kept in the virtualenv: pip would compile all of PyTorch beforehand, in 28
    of 41 s (2 cores of an AMD EPYC, 2026-11-22).
    """
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    session.env["PYTHONPYCACHEPREFIX"] = str(Path(session.virtualenv.location or "", "bytecode").resolve())
    wanted = requirements(*groups)
    stamp = session.virtualenv.location + "/installed.txt" if session.virtualenv.location else ""
    with open(CONSTRAINTS, encoding="utf-8") as file:
        text = "\n".join([*wanted, file.read()])
    try:
        with open(stamp, encoding="utf-8") as file:
            if file.read() == text:
                return
    except FileNotFoundError:
        pass
    session.install("--no-compile", "--constraint", CONSTRAINTS, *wanted)
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(text)


def requirements(*names: str) -> list[str]:
    """Requirements that pip is given: the project's own dependencies, the named extras and groups of pyproject.toml.

    Extras that a list names, as llm-reference-runs[report], are replaced by their own requirements.
    """
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = list(PROJECT["project"]["dependencies"])
    for name in names:
        for requirement in (extras | PROJECT["dependency-groups"])[name]:
            named = re.fullmatch(rf"{PROJECT['project']['name']}\[(.*)\]", requirement)
            wanted += requirements(*named[1].split(",")) if named else [requirement]
    return list(dict.fromkeys(wanted))


def suite(session: nox.Session, *arguments: str) -> None:
    """Run one command of the suite."""
    python(session, "suite", *arguments)


def python(session: nox.Session, module: str, *arguments: str) -> None:
    """Run a module: its exit code becomes nox's, and Ctrl-C leaves it time to end its ranks.

    nox by itself turns every failure into exit code 1, and kills 0.5 s after Ctrl-C.
    """
    try:
        session.run("python", "-m", module, *arguments, interrupt_timeout=60, terminate_timeout=30)
    except CommandFailed as error:
        code = getattr(error, "return_code", None)  # older releases of nox do not tell
        if code is None:
            raise
        sys.exit(code)


@nox.session
def reproduce(session: nox.Session) -> None:
    """Train a scaled-down published run here, count, and compare with the prediction: nox -s reproduce -- bloom-mini"""
    install(session, "execute")
    suite(session, "reproduce", *session.posargs)


@nox.session
def calibrate(session: nox.Session) -> None:
    """Measure what this machine can do, and store its profile: nox -s calibrate"""
    install(session, "execute")
    suite(session, "calibrate", *session.posargs)


@nox.session
def regress(session: nox.Session) -> None:
    """Say whether anything became slower, bigger or wrong since the baseline: nox -s regress -- bloom-mini"""
    install(session, "execute", "regress")
    suite(session, "regress", *session.posargs)


@nox.session
def accept(session: nox.Session) -> None:
    """Judge this node, in about 5 minutes: nox -s accept -- --profile accept --fleet DIR"""
    install(session, "execute")
    suite(session, "accept", *session.posargs)


@nox.session
def accept_selftest(session: nox.Session) -> None:
    """See faults caught that are put into the battery (some need root): nox -s accept_selftest -- --only nan"""
    install(session, "execute")
    python(session, "benchmarks.accept_selftest", *session.posargs)


@nox.session
def accuracy(session: nox.Session) -> None:
    """Reproduce miniatures on 1 and 2 ranks, eager and compiled, and write the table: nox -s accuracy -- gpt2-mini

    Processors that are shared change within minutes: they are calibrated before each miniature, and each setup is
    launched three times: the table has the launch of the median step time.
    """
    install(session, "execute", "report", "regress")
    launch_setups(session, session.posargs or [f"{run}-mini" for run in RUNS])
    suite(session, "report")


def launch_setups(session: nox.Session, names: Sequence[str], *options: str) -> None:
    """Calibrate before each miniature, and launch each of its setups three times."""
    devices = session.run("python", "-c", "import torch; print(torch.cuda.device_count())", silent=True)
    gpus = int(str(devices).split()[-1])  # what torch warns of is before it
    places = [("cpu", "2"), ("cpu", "1"), *([("cuda", "1")] if gpus else [])]
    for name in names:
        session.run("python", "-m", "suite", "calibrate", "--device", "cpu", "--ranks", "2", *options)
        for device, ranks in places:
            for execution in ("--no-compile", "--compile"):
                setup = (name, "--device", device, "--ranks", ranks, execution, "--launches", "3", *options)
                session.run("python", "-m", "suite", "reproduce", *setup, success_codes=[0, 1])


@nox.session
def record(session: nox.Session) -> None:
    """Measure the project's own results anew, results/recorded: nox -s record -- setups battery kernels ladder tables

    On 2 idle cores setups take 33 minutes, the battery 5, kernels 25, the ladder 10, tables none; without names all of
    them. What a part measures replaces what was there, when its turn comes: parts may be run one by one, and one that
    failed again. The battery's launches go with those of setups: measure both. Run it at the root of a clone, for
    records have relative paths then.
    """
    install(session, "execute", "report", "regress", "fit", "kernels", "test", "bench")
    replaced = {
        "setups": ["records/*-mini", "machines"],
        "battery": ["acceptance"],
        "kernels": ["kernels"],
        "ladder": ["ladder", "records/gpt2-mini-ladder"],
        "tables": [],
    }
    commands = {
        "battery": ["suite", "accept", "--profile", "quick", "--results", RECORDED],
        "kernels": ["benchmarks.kernels", f"--benchmark-storage={RECORDED}/kernels"],
        "ladder": ["suite", "ladder", "gpt2-mini", "--results", RECORDED],
        "tables": ["suite", "report", "--no-page", "--results", RECORDED],
    }
    if unknown := set(session.posargs) - replaced.keys():
        session.error(f"unknown parts: {', '.join(sorted(unknown))}; allowed: {', '.join(replaced)}")
    for part in [part for part in replaced if part in (session.posargs or replaced)]:
        for pattern in replaced[part]:
            for directory in Path(RECORDED).glob(pattern):
                shutil.rmtree(directory)
        try:
            if part == "setups":
                launch_setups(session, [f"{run}-mini" for run in RUNS], "--results", RECORDED)
            else:
                session.run("python", "-m", *commands[part], success_codes=[0, 1, 3])
        finally:
            session.run("python", "-m", "suite.records.private_paths", RECORDED)


@nox.session
def predict(session: nox.Session) -> None:
    """Say what arithmetic says of a run, next to what was published: nox -s predict -- bloom-176b"""
    install(session)
    suite(session, "predict", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the quick tests; or longer ones: nox -s tests -- --choice medium, or slow, or -k traffic"""
    install(session, *TESTED)
    words = session.posargs or ["--choice", "quick"]
    chosen = any(word.startswith("--choice") for word in words)
    session.run(*PYTEST, *(SIDE_BY_SIDE if chosen else ()), *words)


@nox.session
def durations(session: nox.Session) -> None:
    """Measure the processor time of every test and write tests/durations.tsv, by which `tests` chooses."""
    install(session, *TESTED)
    session.run(*PYTEST, *SIDE_BY_SIDE, "--write-durations", "tests/durations.tsv", *session.posargs)


@nox.session
def simulated_gpu(session: nox.Session) -> None:
    """Run all code for GPUs over simulated ones, with PyTorch's CUDA build: nox -s simulated_gpu -- -m "not long" """
    install_simulated(session, *(locked(name) for name in ("torch", "triton")))
    simulated(session, str(session.virtualenv.location), *session.posargs)


@nox.session
def simulated_gpu_oldest(session: nox.Session) -> None:
    """Run what `first-hour` runs over simulated GPUs, with the oldest PyTorch that the suite supports."""
    install_simulated(session, *OLDEST)
    chosen = "first_hour_simulated or test_devices_simulated"
    simulated(session, str(session.virtualenv.location), "-k", chosen, *session.posargs)


def locked(name: str) -> str:
    """The version of a package in constraints.txt."""
    lines = Path(CONSTRAINTS).read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{name}=="))


def install_simulated(session: nox.Session, torch: str, triton: str) -> None:
    """PyTorch's CUDA build without NVIDIA's libraries, CUDA's headers, and the stand-ins; skip where one is missing.

    `===` takes the registry's build: an index of CPU builds offers "+cpu", which would be newer to pip.
    """
    if missing := [tool for tool in ("gcc", "nm") if not shutil.which(tool)]:
        session.skip(f"NOT RUN: no {' and no '.join(missing)} on the PATH")
    place = Path(str(session.virtualenv.location))
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    session.env["PYTHONPYCACHEPREFIX"] = str((place / "bytecode").resolve())
    every = requirements("execute", "test", "fit", "regress", "tables", "report", "models")
    wanted = [name for name in every if not name.startswith(("torch", "peft", "bitsandbytes"))]  # these two need torch
    wanted += ["filelock", "typing-extensions", "setuptools<82", "sympy", "networkx", "jinja2", "fsspec", "numpy"]
    headers = [f"nvidia-cuda-{part}>=13,<13.1" for part in ("runtime", "crt")]
    stamp = place / "installed.txt"
    text = "\n".join([*wanted, torch, triton, CUDNN_FRONT_END, *headers, Path(CONSTRAINTS).read_text(encoding="utf-8")])
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != text:
        session.install("--no-compile", "--constraint", CONSTRAINTS, *wanted)
        try:
            session.install("--no-compile", "--no-deps", f"torch==={torch}", f"triton=={triton}", CUDNN_FRONT_END)
            session.install("--no-compile", "--no-deps", "--upgrade", "--target", str(place / "cuda_headers"), *headers)
        except CommandFailed:
            session.skip(f"NOT RUN: PyTorch {torch} for CUDA, Triton {triton} or CUDA's headers cannot be had")
        stamp.write_text(text, encoding="utf-8")
    session.run("python", f"{SIMULATED}/build.py")


def simulated(session: nox.Session, place: str, *arguments: str) -> None:
    """Run the tests over simulated GPUs in a virtualenv that `install_simulated` made."""
    python_ = str(Path(place, "bin", "python").absolute())
    command = ("-m", f"{SIMULATED.replace('/', '.')}", "--devices", "8", "--", "python", "-m", "pytest", SIMULATED)
    options = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")  # in the order of its conftest.py
    session.run(python_, *command, *options, *arguments, external=True)


@nox.session
def traced_types(session: nox.Session) -> None:
    """Trace every type of transformers by its defaults, about 40 minutes: nox -s traced_types -- --only mamba2"""
    install(session, "execute", "models")
    session.run("python", "-m", "benchmarks.traced_types", *session.posargs)


@nox.session
def explore_times(session: nox.Session) -> None:
    """Measure how long the page with controls takes to answer a change, at the server and in Debian's Chromium."""
    install(session, "test", "report", "explore", "page")
    session.run("python", "-m", "benchmarks.explore_times", *session.posargs)


@nox.session
def page(session: nox.Session) -> None:
    """Drive Debian's Chromium through the page: loads, filters, prints, reads: nox -s page -- -k filters"""
    install(session, "execute", "test", "regress", "report", "explore", "page")
    axe = Path(session.create_tmp()) / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.exists() and shutil.which("npm"):
        fetch = ("npm", "install", "--silent", "--prefix", session.create_tmp(), f"axe-core@{AXE_CORE}")
        session.run(
            *fetch, external=True, success_codes=range(256)
        )  # the test that needs it says so where it is missing
    env = {"AXE_CORE": str(axe)} if axe.exists() else {}
    served = "tests/end_to_end/test_installed.py::test_explore_answers_a_request"  # it needs dash, as the others
    places = ("tests/end_to_end/page", "tests/report/explore", served)
    session.run("python", "-m", "pytest", *places, *session.posargs, env=env)


@nox.session
def rare(session: nox.Session) -> None:
    """Run the tests that take long and that `tests` leaves out, and all examples of those of which it runs a third."""
    install(session, *TESTED)
    session.run(*PYTEST, "-m", "rare", *session.posargs)
    if not session.posargs:
        examples = ("--hypothesis-profile", "all", "-m", "hypothesis and not (ranks or rare)")
        session.run(*PYTEST, *SIDE_BY_SIDE, *examples)


@nox.session
def mutation(session: nox.Session) -> None:
    """Break one expression at a time and see whether tests notice: nox -s mutation -- suite/metrics --sample 100

    Without a path 40 mutants of each area, for once a week; `-- --changed main` takes 10 minutes.
    """
    install(session, *TESTED, "mutation")
    python(session, "benchmarks.mutation", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Read thousands of damaged files and hostile lines of every command: nox -s fuzz -- -k "run and file" """
    install(session, "execute", "test", "fit", "regress", "report", "fleet")
    files = [f"tests/end_to_end/fuzz/many_{what}.py" for what in ("files", "commands")]
    session.run("python", "-m", "pytest", "-s", *files, *session.posargs)


@nox.session
def writers(session: nox.Session) -> None:
    """Write records by 16 writers that are killed at random, on ext4, tmpfs, overlayfs and NFS; needs root to mount."""
    install(session, "execute", "test", "fit", "regress")
    session.run("python", "-m", "pytest", "-m", "rare", "-s", "tests/records/test_store_writers.py", *session.posargs)


@nox.session
def layouts(session: nox.Session) -> None:
    """Execute every miniature in every layout of the table and compare with one process: nox -s layouts -- -k bloom"""
    install(session, "execute", "test")
    session.run("python", "-m", "pytest", "tests/end_to_end/layouts/full_table.py", *session.posargs)


@nox.session
def parity(session: nox.Session) -> None:
    """Compare logits and gradients with the implementations in transformers, and quantised weights with torchao's."""
    install(session, "execute", "test", "parity")
    session.run("python", "-m", "pytest", "tests/end_to_end/parity", *session.posargs)


@nox.session
def minis(session: nox.Session) -> None:
    """Train miniatures of 33 model types of transformers, or of those that are named, and compare them with traces."""
    install(session, "execute", "models")
    python(session, "benchmarks.minis", *session.posargs)


@nox.session
def peers(session: nox.Session) -> None:
    """Compare 1-bit Adam with DeepSpeed's on gloo."""
    install(session, "execute", "test", "peers")
    session.run("python", "-m", "pytest", "tests/end_to_end/peers", *session.posargs)


@nox.session
def opinions(session: nox.Session) -> None:
    """Compare formulas with DeepSpeed's and Megatron's estimates, llm-analysis and PyTorch's estimators."""
    install(session, "execute", "test", "peers")
    # without what it depends on: transformers and huggingface-hub of 2023, which only its look-up of names needs
    group = PROJECT["dependency-groups"]["opinions"]
    session.install("--no-compile", "--no-deps", "--constraint", CONSTRAINTS, *group)
    session.run("python", "-m", "pytest", "tests/end_to_end/opinions", *session.posargs)


@nox.session
def diagnosed(session: nox.Session) -> None:
    """Train a small model with four frameworks, with slow-downs put in, and diagnose what they write (10 minutes)."""
    install(session, "execute", "models", "test", "peers", "diagnosed")
    # of what litgpt depends on, a run needs Lightning alone; Megatron-Core's timers need PyTorch
    session.install("--no-compile", "--no-deps", "litgpt==0.5.13", "megatron-core==0.16.1")
    session.run("python", "-m", "pytest", "-s", "tests/end_to_end/diagnosed/live_runs.py", *session.posargs)


@nox.session
def audit(session: nox.Session) -> None:
    """Look the pinned packages up in PyPI's database of known vulnerabilities."""
    install(session, "audit")
    printed = session.run("python", ".ci/audit.py", CONSTRAINTS, silent=True, success_codes=[0, 3])
    session.log(printed)
    if "NOT RUN" in str(printed):
        session.skip("NOT RUN: not every package was looked up")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly."""
    install(session, "execute", "kernels", "test", "fit", "regress", "report", "types")
    session.run("mypy", *session.posargs)


@nox.session
def architecture(session: nox.Session) -> None:
    """Check which room may import which, and the sizes of rooms, modules and functions."""
    install(session, "architecture")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": "."})
    session.run("python", ".ci/architecture.py")


@nox.session
def exported(session: nox.Session) -> None:
    """Look up every name that `plan --export` writes in the published releases, which are downloaded and only read."""
    install(session)
    session.run("python", ".ci/exported_names.py", env={"PYTHONPATH": "."})


@nox.session
def sizes(session: nox.Session) -> None:
    """Read the sizes of models again in the published releases, which are downloaded and only read."""
    install(session)
    session.run("python", ".ci/model_sizes.py", env={"PYTHONPATH": "."})


@nox.session
def overhead(session: nox.Session) -> None:
    """Say what the suite adds to a step of a bare PyTorch loop, in time and memory: nox -s overhead -- bloom-mini"""
    install(session, "execute")
    python(session, "benchmarks.overhead", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Time kernels alternately with PyTorch's, compiled ones and Liger-Kernel's: nox -s bench -- -k layer_norm"""
    install(session, "execute", "kernels", "test", "fit", "regress", "bench")
    python(session, "benchmarks.kernels", *session.posargs)


@nox.session
def times(session: nox.Session) -> None:
    """Time commands and predictions, and compare with the times before on this machine: nox -s times -- -k commands"""
    install(session, "test", "fit")
    stored = Path("results/times")
    compared = ("--benchmark-compare",) if any(stored.rglob("*.json")) else ()
    storing = (f"--benchmark-storage={stored}", "--benchmark-autosave", "--benchmark-group-by=func")
    session.run(*PYTEST, "benchmarks/times.py", *storing, *compared, *session.posargs)


@nox.session
def inspect(session: nox.Session) -> None:
    """List registers, spills and instructions of a run's kernels, without a GPU: nox -s inspect -- gpt2-124m"""
    install(session, "execute", "kernels")
    python(session, "benchmarks.machine_code", *session.posargs)


@nox.session
def planted(session: nox.Session) -> None:
    """Plant slow-downs into recorded launches and count what regress finds: nox -s planted -- --comparisons 100"""
    install(session, "regress")
    python(session, "benchmarks.planted_changes", *session.posargs)


@nox.session
def battery_power(session: nox.Session) -> None:
    """Count false rejections and found faults in batteries drawn from recorded ones: nox -s battery_power -- DIR"""
    install(session, "execute", "regress")
    python(session, "benchmarks.battery_power", *session.posargs)


@nox.session
def netlab(session: nox.Session) -> None:
    """Compare ways of averaging over slow links between network namespaces; needs root: nox -s netlab -- --hosts 2"""
    install(session, "execute")
    python(session, "benchmarks.netlab", *session.posargs)


@nox.session
def fleet_records(session: nox.Session) -> None:
    """Measure the store of a million batteries (19 GB): nox -s fleet_records; of fewer with -- --nodes 1000"""
    install(session, "fleet")
    python(session, "benchmarks.fleet_records", *session.posargs)


@nox.session
def slurm(session: nox.Session) -> None:
    """Run all that needs Slurm on a cluster of network namespaces; needs root, slurm-wlm and munge."""
    install(session, "execute", "test", "reframe")
    files = sorted(str(path) for path in Path("tests/end_to_end/slurm").glob("*.py") if path.stem != "conftest")
    session.run("python", "-m", "pytest", "-x", *(session.posargs or files))


@nox.session
def kubernetes(session: nox.Session) -> None:
    """Check the manifests of deploy/kubernetes against the schemas of their versions; no cluster is needed."""
    install(session, "test", "kubernetes")
    files = sorted(str(path) for path in Path("tests/end_to_end/kubernetes").glob("*.py"))
    session.run("python", "-m", "pytest", *(session.posargs or files))


@nox.session
def docs(session: nox.Session) -> None:
    """Build docs/ as a site that needs neither network nor server, into site/; a broken link fails: nox -s docs"""
    install(session, "docs")
    session.run("mkdocs", "build", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})  # Material is not for MkDocs 2


@nox.session
def convergence(session: nox.Session) -> None:
    """Train with exact and with 1-bit Adam, three seeds each, and compare: nox -s convergence -- gpt2-mini"""
    install(session, "execute", "fit")
    python(session, "benchmarks.convergence", *session.posargs)


@nox.session
def endurance(session: nox.Session) -> None:
    """Reproduce bloom-mini 50 times in a row; every launch must end cleanly (about 9 minutes on 2 cores)."""
    install(session, "execute")
    arguments = session.posargs or ["bloom-mini", "--steps", "6", "--launches", "50"]
    suite(session, "reproduce", *arguments, "--no-calibrate", "--results", session.create_tmp())
