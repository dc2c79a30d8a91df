"""Bad input is one line that says what, where, what was given and what is allowed; exit code 2; nothing is left."""

from __future__ import annotations

import os
import random
import string
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from reference_runs.accelerator import accelerator_names
from reference_runs.catalog import miniatures, reference_run, run_names
from suite.__main__ import COMMANDS
from suite.machine.devices import cuda_devices
from suite.paths import ROOT
from suite.reproduce.plan import plan
from suite.reproduce.request import Request
from tests.support.refusals import broken, only_line

NOBODY = 65534


@pytest.fixture
def open_directory(tmp_path):
    """A directory that every user may enter; tmp_path is closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def unprivileged():
    """A context in which permissions bind: root becomes nobody, and root again afterwards."""
    if os.getuid() == 0:
        os.setresuid(NOBODY, NOBODY, 0)
        yield
        os.setresuid(0, 0, 0)
    else:
        yield


def test_an_unknown_run_is_refused_with_the_names_that_exist(reproduce_refused):
    line = reproduce_refused("nonsense")
    others = "on a GPU a recorded run (see `runs`), or a run file ending in .toml"
    assert line == f"unknown run; got 'nonsense', allowed: {', '.join(miniatures())}, {others}"


def test_an_unknown_run_is_refused_by_predict(refused):
    line = refused("predict", "nonsense")
    names = ", ".join([*run_names(), *miniatures()])
    assert line == f"unknown run; got 'nonsense', allowed: {names}, or a file ending in .toml"


def test_an_unknown_name_is_refused_by_show(refused):
    line = refused("show", "nonsense")
    names = ", ".join([*run_names(), *miniatures(), *accelerator_names()])
    assert line == f"unknown name; got 'nonsense', allowed: {names}, or a run file ending in .toml"


def test_a_recorded_run_is_executed_in_its_own_size_on_gpus_alone(reproduce_refused, monkeypatch, tmp_path):
    line = reproduce_refused("gpt2-124m", "--ranks", "1")
    assert line == "gpt2-124m: a recorded run in its own size; got cpu, allowed: --device cuda, or gpt2-mini"
    monkeypatch.setattr("suite.reproduce.plan.resolved_device", lambda _: ("cuda", 1))
    for name in ("gpt2-124m", "gpt2-1558m"):
        run = reference_run(name)
        planned = plan(Request(name=name, ranks=1, device="cuda", results=tmp_path))
        assert (planned.name, planned.architecture, planned.recipe) == (name, run.architecture, run.recipe)
        assert planned.layout == msgspec.structs.replace(run.layout, data_parallel=1, accumulation=None)
        assert planned.layout.fused_attention
    refusal = reproduce_refused("gpt2-124m", "--device", "cuda")
    assert "more ranks than GPUs; got 8, allowed: at most 1, or with --share-devices" in refusal


OPTIONS = {
    "no-ranks": (["--ranks", "0"], ["--ranks: ", "got 0", "allowed: 1 or more"]),
    "text-for-ranks": (["--ranks", "two"], ["--ranks", "valid int"]),
    "too-few-steps": (["--steps", "1"], ["--steps: too few steps", "got 1", "allowed: 6 or more"]),
    "too-many-steps": (["--steps", str(10**23)], ["--steps: too many steps", "got 1000", "allowed: at most 1000000"]),
    "negative-seed": (["--seed", "-1"], ["--seed: seed out of range", "got -1", "allowed: 0 to 4294967295"]),
    "seed-beyond-64-bits": (["--seed", str(10**23)], ["--seed: seed out of range", "allowed: 0 to 4294967295"]),
    "global-batch-of-no-replicas": (["--global-batch", "3"], ["--global-batch: ", "got 3", "allowed: multiples of "]),
    "no-launches": (["--launches", "0"], ["--launches", "got 0", "allowed: 1 or more"]),
    "layout-without-count": (["--layout", "dpx"], ["--layout: not a layout", "got 'dpx'", "allowed: dpN, tpN"]),
    "layout-empty": (["--layout", ""], ["--layout: not a layout", "got ''", "allowed: dpN, tpN"]),
    "layout-count-0": (["--layout", "dp0"], ["--layout: number out of range", "got 'dp0'", "allowed: dpN"]),
    "layout-zero-4": (["--layout", "dp2,zero4"], ["--layout: number out of range", "got 'zero4'", "zero0/1/2/3"]),
    "layout-twice": (["--layout", "dp2,dp2"], ["--layout: given twice", "got 'dp2'"]),
    "layout-resharding-twice": (["--layout", "dp2,reshard,noreshard"], ["--layout: given twice", "got 'noreshard'"]),
    "layout-kind-without-prefix": (["--layout", "dp2,from-input"], ["--layout: not a layout", "got 'from-input'"]),
    "layout-offload": (["--layout", "dp2,offload"], ["--layout: ", "got offload state with zero1"]),
    "layout-shards-of-no-zero": (
        ["--layout", "dp4,zero1,shard2"],
        ["belongs to zero2 and zero3", "got shard2 with zero1"],
    ),
    "layout-shards-of-no-group": (["--layout", "dp6,zero3,shard4"], ["groups of dp x cp", "got 4", "allowed: 2, 3, 6"]),
    "layout-shards-within-a-sample": (
        ["--layout", "dp2,cp2,zero3,shard3"],
        ["layout.shard_ranks: groups of dp x cp ranks", "got 3", "allowed: 2, 4"],
    ),
    "layout-one-shard": (["--layout", "dp2,zero3,shard1"], ["layout.shard_ranks", "got 1", "allowed: 2"]),
    "ranks-and-layout": (["--ranks", "3", "--layout", "dp2"], ["--layout dp2 is 2 ranks", "got --ranks 3"]),
    "ranks-and-axes": (
        ["--ranks", "4", "--layout", "dp2,tp2,pp2"],
        ["--ranks: --layout dp2,tp2,pp2 is 8 ranks", "got --ranks 4"],
    ),
    "unknown-device": (["--device", "tpu"], ["--device: unknown device", "got 'tpu'", "allowed: auto, cpu, cuda"]),
    "unknown-kernels": (["--kernels", "cuda"], ["--kernels: unknown kernels", "got 'cuda'", "allowed: torch, triton"]),
    "unknown-option": (["--nonsense"], ["No such option", "--nonsense"]),
}


@pytest.mark.parametrize(("options", "fragments"), OPTIONS.values(), ids=OPTIONS)
def test_a_bad_option_is_refused(options, fragments, reproduce_refused):
    line = reproduce_refused("bloom-mini", *options)
    for fragment in fragments:
        assert fragment in line


def test_cuda_without_a_cuda_device_is_refused(reproduce_refused):
    if cuda_devices():
        pytest.skip("this machine has a CUDA device")
    line = reproduce_refused("bloom-mini", "--device", "cuda")
    assert line == "--device: no CUDA device here; got cuda, allowed: cpu, auto"


CORPORA = {
    "empty-file": (b"", ["the corpus is empty", "got 0 bytes", "allowed: UTF-8 text"]),
    "tiny-file": (b"hello world", ["too small for a vocabulary of 3917 tokens", "got 11 bytes", "15668 bytes"]),
    "latin-1": (b"caf\xe9 " * 10_000, ["not UTF-8 text", "corpus.txt", "allowed: UTF-8 text files"]),
    "one-word": (b"word " * 10_000, ["too few distinct words for a vocabulary of 3917 tokens", "more varied text"]),
}


@pytest.mark.parametrize(("data", "fragments"), CORPORA.values(), ids=CORPORA)
def test_a_corpus_that_cannot_be_trained_on_is_refused(data, fragments, tmp_path, reproduce_refused):
    path = tmp_path / "corpus.txt"
    path.write_bytes(data)
    line = reproduce_refused("bloom-mini", "--corpus", str(path))
    assert line.startswith("--corpus: ")
    for fragment in fragments:
        assert fragment in line
    assert not list(tmp_path.glob("cache/*/*"))


def test_a_corpus_smaller_than_one_global_batch_is_refused(tmp_path, reproduce_refused):
    letters = random.Random(1)
    words = ["".join(letters.choices(string.ascii_lowercase, k=20)) for _ in range(300)]  # most become one token
    path = tmp_path / "corpus.txt"
    path.write_text(" ".join(words * 4), encoding="utf-8")
    line = reproduce_refused("bloom-mini", "--corpus", str(path))
    assert line.startswith("--corpus: the corpus is smaller than one global batch; got ")
    assert line.endswith(f" tokens, allowed: at least {24 * 64 + 1} tokens")


def test_a_missing_corpus_is_refused(tmp_path, reproduce_refused):
    path = tmp_path / "missing"
    line = reproduce_refused("bloom-mini", "--corpus", str(path))
    assert line == f"--corpus: cannot read the corpus: No such file or directory; got {path}"


def test_an_empty_corpus_directory_is_refused(tmp_path, reproduce_refused):
    path = tmp_path / "corpus"
    path.mkdir()
    line = reproduce_refused("bloom-mini", "--corpus", str(path))
    assert line == f"--corpus: the directory holds no file; got {path}, allowed: UTF-8 text files"


@pytest.mark.parametrize("place", ["file", "directory", "subdirectory", "below-directory"])
def test_an_unreadable_corpus_is_refused_and_no_part_left_out(place, request, open_directory, refused):
    corpus = open_directory / "corpus"
    closed = corpus / "closed"
    closed.mkdir(parents=True)
    file = corpus / "text.txt"
    file.write_text("text " * 10_000, encoding="utf-8")
    asked, shut = {
        "file": (file, file),
        "directory": (corpus, corpus),
        "subdirectory": (corpus, closed),
        "below-directory": (closed / "text.txt", closed),
    }[place]
    shut.chmod(0)
    request.getfixturevalue("unprivileged")
    results = open_directory / "results"
    line = refused("reproduce", "bloom-mini", "--device", "cpu", "--corpus", str(asked), "--results", str(results))
    assert not results.exists()
    assert line.startswith("--corpus: cannot read the ")
    assert "Permission denied; got " in line


def test_a_results_directory_below_a_file_is_refused(tmp_path, refused):
    file = tmp_path / "file"
    file.write_text("kept", encoding="utf-8")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(" ".join(map(str, range(6000))), encoding="utf-8")
    options = ("--device", "cpu", "--corpus", str(corpus), "--results", str(file / "results"))
    line = refused("reproduce", "bloom-mini", *options)
    assert line == (
        f"--results: cannot write to the results directory: Not a directory; got {file / 'results'}, "
        "allowed: a writable directory"
    )
    assert file.read_text(encoding="utf-8") == "kept"


def test_an_unknown_command_is_refused_with_the_commands_that_exist(refused):
    line = refused("nonsense")
    assert line == f"unknown command; got 'nonsense', allowed: {', '.join(COMMANDS)}"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("bloom-mini",), "no ladder for this run; got 'bloom-mini', allowed: gpt2-mini, gpt2-124m, "),
        (("gpt2-124m",), "--device: gpt2-124m needs a GPU; got cpu, allowed: cuda, or gpt2-mini"),
        (("gpt2-mini", "--rungs", "nonsense"), "--rungs: unknown rung; got 'nonsense', allowed: memory-baseline, "),
        (("gpt2-mini", "--from", "a,b"), "--from: one rung to start from; got 'a,b'"),
        (("gpt2-mini", "--track", "up"), "--track: unknown track; got 'up', allowed: memory, speed"),
        (("gpt2-mini", "--track", "memory", "--rungs", "compile"), "no rung is left; got --rungs, --track and --from"),
        (("gpt2-mini", "--ablate", "compile", "--rungs", "bf16"), "--ablate: an ablated rung is not run; got compile"),
        (("gpt2-mini", "--ablate", "speed-baseline"), "--ablate: a baseline has nothing to leave out; got speed"),
        (("gpt2-mini", "--repeat", "0"), "--repeat: launches; got 0, allowed: 1 or more"),
        (("gpt2-mini", "--traces", "/nowhere"), "--traces: no such directory; got /nowhere, allowed: "),
    ],
)
def test_a_ladder_that_cannot_run_is_refused_before_anything_is_written(refused, tmp_path, arguments, line):
    results = tmp_path / "results"
    assert refused("ladder", *arguments, "--device", "cpu", "--results", str(results)).startswith(line)
    assert not results.exists()


def test_a_missing_argument_is_refused(refused):
    assert "Missing argument" in refused("predict")


def test_a_refusal_reaches_the_shell_as_one_line_and_exit_code_2(tmp_path):
    path = broken(tmp_path, 'value = "alibi"', 'value = "rope"')
    command = [sys.executable, "-m", "suite", "reproduce", str(path), "--results", str(tmp_path / "results")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "got 'rope', allowed: alibi, learned" in only_line(done.stderr)
    assert not (tmp_path / "results").exists()
