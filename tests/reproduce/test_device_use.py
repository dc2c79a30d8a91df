"""Before a launch it is said whether it compiles here, and whether its ranks share GPUs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.errors import InputError
from reference_runs.run import ProductFormat
from suite.__main__ import main
from suite.job.corpus import Corpus
from suite.machine.devices import CudaDevice
from suite.machine.gpu import Gpu
from suite.records.record import policy
from suite.reproduce import device_use
from suite.reproduce.plan import Plan, job_for, plan
from suite.reproduce.request import Request
from suite.reproduce.step_time import check_timed
from suite.reproduce.supported import check_products

MISSING = "no C compiler (gcc or clang on the PATH, or CC)"
CORPUS = Corpus(source="", sha256="", text_bytes=0, files=0, tokens_file="", tokens=0, vocabulary=0)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.reproduce.plan.resolved_device", lambda _: ("cuda", 1))
    monkeypatch.setattr(device_use, "compilation_missing", lambda _: "")


def planned(**options: object) -> Plan:
    return plan(Request(name="gpt2-mini", results=Path(), **options))  # type: ignore[arg-type]


@pytest.mark.usefixtures("one_gpu")
def test_blocks_are_compiled_by_default_on_a_gpu() -> None:
    assert planned().compiled
    assert planned().changes == ()


@pytest.mark.usefixtures("one_gpu")
def test_what_a_compiled_block_finds_together_is_not_halved() -> None:
    made = planned(layout="pp2,zero-bubble", share_devices=True)
    assert not made.compiled
    assert "eager, not compiled: zero-bubble halves its backward pass" in made.changes
    with pytest.raises(InputError, match="cannot compile here; got zero-bubble halves its backward pass"):
        planned(layout="pp2,zero-bubble", share_devices=True, compiled=True)


@pytest.mark.usefixtures("one_gpu")
def test_blocks_whose_weights_change_from_pass_to_pass_are_eager() -> None:
    made = planned(layout="pp2,pipedream", share_devices=True)
    assert not made.compiled
    assert "eager, not compiled: pipedream changes the weights of a block from pass to pass" in made.changes


@pytest.mark.usefixtures("one_gpu")
def test_without_a_compiler_the_default_is_eager_and_the_job_keeps_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_use, "compilation_missing", lambda _: MISSING)
    made = planned()
    assert not made.compiled
    assert made.changes == (f"eager, not compiled: {MISSING}",)
    assert job_for(made, CORPUS, "").changes == made.changes


def test_asked_for_without_a_compiler_it_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_use, "compilation_missing", lambda _: MISSING)
    assert main(["reproduce", "gpt2-mini", "--device", "cpu", "--compile"]) == 2
    assert capsys.readouterr().err == f"error: --compile: cannot compile here; got {MISSING}, allowed: --no-compile\n"


@pytest.mark.usefixtures("one_gpu")
def test_triton_kernels_on_a_gpu_need_the_compiler_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.reproduce.device_use.compilation_missing", lambda _: MISSING)
    with pytest.raises(InputError, match="Triton cannot compile here"):
        planned(kernels="triton")


@pytest.mark.usefixtures("one_gpu")
def test_more_ranks_than_gpus_are_refused_unless_they_may_share() -> None:
    with pytest.raises(InputError, match="at most 1, or with --share-devices"):
        planned(layout="dp2")
    made = planned(layout="tp2", share_devices=True)
    assert made.shares_devices
    assert made.changes == (
        "2 ranks share 1 GPU (rank modulo 1), over gloo: times do not compare with ranks on own GPUs",
    )
    job = job_for(made, CORPUS, "")
    assert (job.shares_devices, job.changes) == (True, made.changes)


@pytest.mark.usefixtures("one_gpu")
def test_times_of_shared_gpus_are_neither_predicted_nor_of_the_same_setup() -> None:
    made = planned(layout="tp2", share_devices=True)
    with pytest.raises(InputError, match="ranks that share a GPU"):
        check_timed(made)
    shared = job_for(made, CORPUS, "")
    alone = msgspec.structs.replace(shared, shares_devices=False)
    assert policy(shared).items() - policy(alone).items() == {("shares_devices", "True")}


@pytest.mark.usefixtures("one_gpu")
def test_ranks_with_a_gpu_each_share_nothing() -> None:
    made = planned(ranks=1, share_devices=True)
    assert (made.shares_devices, made.changes) == (False, ())


def test_there_must_be_gpus_to_share(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "gpt2-mini", "--device", "cpu", "--share-devices"]) == 2
    assert "--share-devices: no GPUs to share" in capsys.readouterr().err


def test_products_in_8_bits_have_no_predicted_time() -> None:
    made = planned(device="cpu", products="fp8-current")
    assert made.recipe.product_format is ProductFormat.FP8_CURRENT
    with pytest.raises(InputError, match="--products: products without a measured time; got fp8-current"):
        check_timed(made)
    check_timed(planned(device="cpu"))


def gpu_of(capability: tuple[int, int]) -> tuple[CudaDevice, ...]:
    return (CudaDevice(name="", uuid="", pci="", memory_bytes=80 * 2**30, gpu=Gpu(capability=capability)),)


@pytest.mark.usefixtures("one_gpu")
def test_products_in_8_bits_need_ada_or_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability in ((8, 9), (9, 0), (10, 0)):
        monkeypatch.setattr("suite.reproduce.plan.cuda_device_list", lambda gpu=capability: gpu_of(gpu))
        assert planned(device="cuda", products="fp8-current").recipe.product_format is ProductFormat.FP8_CURRENT
    monkeypatch.setattr("suite.reproduce.plan.cuda_device_list", lambda: gpu_of((8, 0)))
    with pytest.raises(InputError) as refusal:
        planned(device="cuda", products="fp8-current")
    assert str(refusal.value) == (
        "--products: GPUs of this compute capability have no products in 8 bits; got 8.0, "
        "allowed: 8.9 or later: Ada, Hopper, Blackwell; or --products none"
    )
    assert planned(device="cuda").recipe.product_format is ProductFormat.NONE


@pytest.mark.usefixtures("one_gpu")
def test_products_in_8_bits_of_odd_sizes_are_refused_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.reproduce.plan.cuda_device_list", lambda: gpu_of((9, 0)))
    workload = planned(device="cuda", products="fp8-current").workload
    shape = msgspec.structs.replace(workload.architecture, ffn_hidden=1000)
    odd = workload._replace(architecture=shape)
    check_products(odd, "cpu", [], "here")
    with pytest.raises(InputError, match="sizes that are no multiples of 16; got 1000, allowed: --products none"):
        check_products(odd, "cuda", [Gpu()], "here")
