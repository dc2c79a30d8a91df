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
from suite.reproduce import slice_memory
from suite.reproduce.plan import plan
from suite.reproduce.request import Request
from tests.support.refusals import broken, only_line

NOBODY = 65534


@pytest.fixture
def open_directory():
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


def test_an_unknown_name_is_refused_with_the_names_that_exist(not_refused):
    minis, recorded = list(miniatures()), run_names()
    on_gpus = "on a GPU a recorded run (see `runs`), or a run file ending in .toml"
    runs = ", ".join([*recorded, *minis])
    names = ", ".join([*recorded, *minis, *accelerator_names()])
    more = "a model by name (see `runs`), config.json"
    of_fit = "of `fit` a directory, or a file ending in .toml"
    table = [
        ("reproduce nonsense", f"error: unknown run; got 'nonsense', allowed: {', '.join(minis)}, {on_gpus}\n"),
        (
            "predict nonsense",
            f"error: unknown run; got 'nonsense', allowed: {runs}, {more}, or a file ending in .toml\n",
        ),
        ("fit nonsense", f"error: unknown run; got 'nonsense', allowed: {runs}, {more}, {of_fit}\n"),
        ("show nonsense", f"error: unknown name; got 'nonsense', allowed: {names}, or a run file ending in .toml\n"),
        ("nonsense", f"error: unknown command; got 'nonsense', allowed: {', '.join(COMMANDS)}\n"),
        ("predict", "Missing argument"),
    ]
    assert not_refused("", table) == []


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


OPTIONS = [
    ("--ranks 0", ("--ranks: ", "got 0", "allowed: 1 or more")),
    ("--ranks two", ("--ranks", "valid int")),
    ("--steps 1", ("--steps: too few steps", "got 1", "allowed: 6 or more")),
    (f"--steps {10**23}", ("--steps: too many steps", "got 1000", "allowed: at most 1000000")),
    ("--seed -1", ("--seed: seed out of range", "got -1", "allowed: 0 to 4294967295")),
    (f"--seed {10**23}", ("--seed: seed out of range", "allowed: 0 to 4294967295")),
    ("--global-batch 3", ("--global-batch: ", "got 3", "allowed: multiples of ")),
    ("--launches 0", ("--launches", "got 0", "allowed: 1 to 1,000")),
    ("--layout dpx", ("--layout: not a layout", "got 'dpx'", "allowed: dpN, tpN")),
    ("--layout ''", ("--layout: not a layout", "got ''", "allowed: dpN, tpN")),
    ("--layout dp0", ("--layout: number out of range", "got 'dp0'", "allowed: dpN")),
    ("--layout dp2,zero4", ("--layout: number out of range", "got 'zero4'", "zero0/1/2/3")),
    ("--layout dp2,dp2", ("--layout: given twice", "got 'dp2'")),
    ("--layout dp2,reshard,noreshard", ("--layout: given twice", "got 'noreshard'")),
    ("--layout dp2,from-input", ("--layout: not a layout", "got 'from-input'")),
    ("--layout dp2,offload", ("--layout: ", "got offload state with zero1")),
    ("--layout dp4,zero1,shard2", ("belongs to zero2 and zero3", "got shard2 with zero1")),
    ("--layout dp6,zero3,shard4", ("groups of dp x cp", "got 4", "allowed: 2, 3, 6")),
    ("--layout dp2,cp2,zero3,shard3", ("layout.shard_ranks: groups of dp x cp ranks", "got 3", "allowed: 2, 4")),
    ("--layout dp2,zero3,shard1", ("layout.shard_ranks", "got 1", "allowed: 2")),
    ("--ranks 3 --layout dp2", ("--layout dp2 is 2 ranks", "got --ranks 3")),
    ("--ranks 4 --layout dp2,tp2,pp2", ("--ranks: --layout dp2,tp2,pp2 is 8 ranks", "got --ranks 4")),
    ("--device tpu", ("--device: unknown device", "got 'tpu'", "allowed: auto, cpu, cuda")),
    ("--kernels cuda", ("--kernels: unknown kernels", "got 'cuda'", "allowed: torch, triton")),
    ("--nonsense", ("No such option", "--nonsense")),
]


def test_a_bad_option_is_refused(not_refused):
    assert not_refused("reproduce bloom-mini --device cpu", OPTIONS, "--results RESULTS") == []


def test_cuda_without_a_cuda_device_is_refused(reproduce_refused):
    if cuda_devices():
        pytest.skip("this machine has a CUDA device")
    line = reproduce_refused("bloom-mini", "--device", "cuda")
    assert line == "--device: no CUDA device here; got cuda, allowed: cpu, auto"


CORPORA = {
    b"": ("the corpus is empty", "got 0 bytes", "allowed: UTF-8 text"),
    b"hello world": ("too small for a vocabulary of 3917 tokens", "got 11 bytes", "15668 bytes"),
    b"caf\xe9 " * 10_000: ("not UTF-8 text", "text.txt", "allowed: UTF-8 text files"),
    b"word " * 10_000: ("too few distinct words for a vocabulary of 3917 tokens", "more varied text"),
}


def test_a_corpus_that_cannot_be_trained_on_is_refused(tmp_path, not_refused):
    table = []
    for number, (data, words) in enumerate(CORPORA.items()):
        path = tmp_path / f"{number}text.txt"
        path.write_bytes(data)
        table.append((f"--corpus {path}", ("--corpus: ", *words)))
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()
    no_file = f"--corpus: the directory holds no file; got {empty}, allowed: UTF-8 text files"
    table += [
        (f"--corpus {missing}", f"--corpus: cannot read the corpus: No such file or directory; got {missing}\n"),
        (f"--corpus {empty}", no_file),
    ]
    assert not_refused("reproduce bloom-mini --device cpu", table, "--results RESULTS") == []
    assert not list(tmp_path.glob("cache/*/*"))


def test_a_corpus_smaller_than_one_global_batch_is_refused(tmp_path, reproduce_refused):
    letters = random.Random(1)
    words = ["".join(letters.choices(string.ascii_lowercase, k=20)) for _ in range(300)]  # most become one token
    path = tmp_path / "corpus.txt"
    path.write_text(" ".join(words * 4), encoding="utf-8")
    line = reproduce_refused("bloom-mini", "--corpus", str(path))
    assert line.startswith("--corpus: the corpus is smaller than one global batch; got ")
    assert line.endswith(f" tokens, allowed: at least {24 * 64 + 1} tokens")


def test_an_unreadable_corpus_is_refused_and_no_part_left_out(request, open_directory, refused):
    corpus = open_directory / "corpus"
    closed = corpus / "closed"
    closed.mkdir(parents=True)
    file = corpus / "text.txt"
    file.write_text("text " * 10_000, encoding="utf-8")
    results = open_directory / "results"
    if os.getuid() == 0:
        for path in (corpus, closed, file):
            os.chown(path, NOBODY, NOBODY)
    request.getfixturevalue("unprivileged")
    wrong = []
    for asked, shut in ((file, file), (corpus, corpus), (corpus, closed), (closed / "text.txt", closed)):
        mode = shut.stat().st_mode
        shut.chmod(0)
        line = refused("reproduce", "bloom-mini", "--device", "cpu", "--corpus", str(asked), "--results", str(results))
        shut.chmod(mode)
        if not line.startswith("--corpus: cannot read the ") or "Permission denied; got " not in line:
            wrong.append((asked, shut, line))
    assert wrong == []
    assert not results.exists()


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


SLICES = [
    ("bloom-176b-slice --stage 12", "no such stage"),
    ("bloom-176b-slice --layers 7", "layers of the middle stage; got 7, allowed: 1 to 6"),
    ("bloom-176b-slice --ranks 3", "processes of a slice; got 3, allowed: 1, or 4 = 4 (tp)"),
    ("bloom-mini-slice", "unknown run"),
    ("gpt2-124m-slice", "does not fit: the slice needs 73.1 GiB; got 8.0 GiB"),
    ("bloom-mini --layers 2", "--layers: of a slice alone"),
    ("bloom-mini --stage first --sequence 8", "--stage, --sequence: of a slice alone"),
]


def test_a_slice_that_is_not_there_or_does_not_fit_is_refused(not_refused, monkeypatch):
    monkeypatch.setattr(slice_memory, "free_bytes", lambda: 8 * 2**30)
    assert not_refused("reproduce", SLICES, "--device cpu") == []


LADDERS = [
    ("bloom-mini", "no ladder for this run; got 'bloom-mini', allowed: gpt2-mini, gpt2-124m, "),
    ("gpt2-124m", "--device: gpt2-124m needs a GPU; got cpu, allowed: cuda, or gpt2-mini"),
    ("gpt2-mini --rungs nonsense", "--rungs: unknown rung; got 'nonsense', allowed: memory-baseline, "),
    ("gpt2-mini --from a,b", "--from: one rung to start from; got 'a,b'"),
    ("gpt2-mini --track up", "--track: unknown track; got 'up', allowed: memory, speed"),
    ("gpt2-mini --track memory --rungs compile", "no rung is left; got --rungs, --track and --from"),
    ("gpt2-mini --ablate compile --rungs bf16", "--ablate: an ablated rung is not run; got compile"),
    ("gpt2-mini --ablate speed-baseline", "--ablate: a baseline has nothing to leave out; got speed"),
    ("gpt2-mini --repeat 0", "--repeat: launches; got 0, allowed: 1 to 1,000"),
    ("gpt2-mini --traces /nowhere", "--traces: no such directory; got /nowhere, allowed: "),
]


def test_a_ladder_that_cannot_run_is_refused_before_anything_is_written(not_refused):
    assert not_refused("ladder", LADDERS, "--device cpu --results RESULTS") == []


MISSPELT = [
    ("reproduce blom-mini", "bloom-mini"),
    ("reproduce blom-176b", "bloom-176b"),
    ("predict blom-176b", "bloom-176b"),
    ("show gpt2-124", "gpt2-124m"),
    ("show h100-smx", "h100-sxm"),
    ("predict bloom-176b --on a100-sxm-80", "a100-sxm-80gb"),
    ("predict bloom-176b --layout dp8,recompute-ful", "recompute-full"),
    ("predict bloom-176b --layout dp8,no-reshard", "noreshard"),
    ("predict bloom-176b --layout dp8,micr2", "micro2"),
    ("reprodce bloom-mini", "reproduce"),
]


def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(not_refused):
    assert not_refused("", [(typed, f", did you mean {meant}? allowed: ") for typed, meant in MISSPELT]) == []


def test_a_refusal_reaches_the_shell_as_one_line_and_exit_code_2(tmp_path):
    path = broken(tmp_path, 'value = "alibi"', 'value = "rope"')
    command = [sys.executable, "-m", "suite", "reproduce", str(path), "--results", str(tmp_path / "results")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "got 'rope', allowed: alibi, learned" in only_line(done.stderr)
    assert not (tmp_path / "results").exists()
