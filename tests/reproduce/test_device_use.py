"""Before a launch it is said whether it compiles here, and whether its ranks share GPUs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from reference_runs.errors import InputError
from reference_runs.run import ProductFormat
from suite.__main__ import main
from suite.job.corpus import Corpus
from suite.job.options import DEFAULT_OPTIONS, Optimization
from suite.machine.devices import CudaDevice
from suite.machine.gpu import Gpu
from suite.machine.packages import PACKAGES, Package
from suite.predict.simulation import optimizations
from suite.predict.simulation.optimizations import OptimizationRule, only_cuda
from suite.records.record import policy
from suite.reproduce import device_use
from suite.reproduce.device_use import checked_sharing
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
def test_blocks_are_compiled_by_default_on_a_gpu_where_nothing_in_them_is_halved_or_changes():
    assert (planned().compiled, planned().changes) == (True, ())
    for layout, why in (
        ("pp2,zero-bubble", "zero-bubble halves its backward pass"),
        ("pp2,pipedream", "pipedream changes the weights of a block from pass to pass"),
    ):
        made = planned(layout=layout, share_devices=True)
        assert not made.compiled
        assert f"eager, not compiled: {why}" in made.changes
        with pytest.raises(InputError, match=f"cannot compile here; got {why}"):
            planned(layout=layout, share_devices=True, compiled=True)


@pytest.mark.usefixtures("one_gpu")
def test_without_a_compiler_the_default_is_eager_and_the_job_keeps_why_and_what_needs_one_is_refused(
    monkeypatch, capsys
):
    monkeypatch.setattr(device_use, "compilation_missing", lambda _: MISSING)
    made = planned()
    assert not made.compiled
    assert made.changes == (f"eager, not compiled: {MISSING}",)
    assert job_for(made, CORPUS, "").changes == made.changes
    with pytest.raises(InputError, match="Triton cannot compile here"):
        planned(kernels="triton")
    assert main(["reproduce", "gpt2-mini", "--device", "cpu", "--compile"]) == 2
    assert capsys.readouterr().err == f"error: --compile: cannot compile here; got {MISSING}, allowed: --no-compile\n"


@pytest.mark.usefixtures("one_gpu")
def test_more_ranks_than_gpus_are_refused_unless_they_may_share():
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
def test_times_of_shared_gpus_are_neither_predicted_nor_of_the_same_setup():
    made = planned(layout="tp2", share_devices=True)
    with pytest.raises(InputError, match="ranks that share a GPU"):
        check_timed(made)
    shared = job_for(made, CORPUS, "")
    alone = msgspec.structs.replace(shared, shares_devices=False)
    assert policy(shared).items() - policy(alone).items() == {("shares_devices", "True")}


@pytest.mark.usefixtures("one_gpu")
def test_ranks_with_a_gpu_each_share_nothing_and_there_must_be_gpus_to_share():
    made = planned(ranks=1, share_devices=True)
    assert (made.shares_devices, made.changes) == (False, ())
    with pytest.raises(InputError, match="--share-devices: no GPUs to share"):
        checked_sharing(True, "cpu", ranks=1, devices=0)


def test_products_in_8_bits_have_no_predicted_time():
    made = planned(device="cpu", products="fp8-current")
    assert made.recipe.product_format is ProductFormat.FP8_CURRENT
    with pytest.raises(InputError, match="--gemm-dtype: products without a measured time; got fp8-current"):
        check_timed(made)
    check_timed(planned(device="cpu"))


@pytest.mark.parametrize("asked", ["none,epilogues", "epilogues,none", "default,across-blocks", "none,default"])
def test_none_and_default_stand_alone_among_optimizations(asked):
    name = "none" if "none" in asked else "default"
    with pytest.raises(InputError, match=f"--optimizations: {name} stands alone; got '{asked}', allowed: {name}, or"):
        planned(device="cpu", optimizations=asked)


def gpu_of(capability: tuple[int, int]) -> tuple[CudaDevice, ...]:
    return (CudaDevice(name="", uuid="", pci="", memory_bytes=80 * 2**30, gpu=Gpu(capability=capability)),)


@pytest.mark.usefixtures("one_gpu")
def test_products_in_8_bits_need_ada_or_later(monkeypatch):
    for capability in ((8, 9), (9, 0), (10, 0)):
        monkeypatch.setattr("suite.reproduce.plan.cuda_device_list", lambda gpu=capability: gpu_of(gpu))
        assert planned(device="cuda", products="fp8-current").recipe.product_format is ProductFormat.FP8_CURRENT
    monkeypatch.setattr("suite.reproduce.plan.cuda_device_list", lambda: gpu_of((8, 0)))
    with pytest.raises(InputError) as refusal:
        planned(device="cuda", products="fp8-current")
    assert str(refusal.value) == (
        "--gemm-dtype: GPUs of this compute capability have no products in 8 bits; got 8.0, "
        "allowed: 8.9 or later: Ada, Hopper, Blackwell; or --gemm-dtype none"
    )
    assert planned(device="cuda").recipe.product_format is ProductFormat.NONE


@pytest.mark.usefixtures("one_gpu")
def test_products_in_8_bits_of_odd_sizes_are_refused_on_gpus_alone(monkeypatch):
    monkeypatch.setattr("suite.reproduce.plan.cuda_device_list", lambda: gpu_of((9, 0)))
    workload = planned(device="cuda", products="fp8-current").workload
    shape = msgspec.structs.replace(workload.architecture, ffn_hidden=1000)
    odd = workload._replace(architecture=shape)
    check_products(odd, "cpu", [], "here")
    with pytest.raises(InputError, match="sizes that are no multiples of 16; got 1000, allowed: --gemm-dtype none"):
        check_products(odd, "cuda", [Gpu()], "here")


@pytest.fixture
def two_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A default that needs a package that nobody has, and one without conditions that has to be asked for."""
    rules = {
        Optimization.EPILOGUES: OptimizationRule(only_cuda, is_default=True),
        Optimization.FLASH_ATTENTION_3: OptimizationRule(only_cuda, is_default=True, package="absent"),
        Optimization.ONE_PASS_UPDATE: OptimizationRule(lambda _: ""),
    }
    monkeypatch.setattr(optimizations, "RULES", rules)
    monkeypatch.setattr(device_use, "RULES", rules)
    monkeypatch.setitem(PACKAGES, "absent", Package("absent", "absent-kernels", "nothing"))


@pytest.mark.usefixtures("one_gpu", "two_rules")
def test_optimizations_are_the_default_ones_or_those_asked_for():
    assert planned().training_options.optimizations == (Optimization.EPILOGUES,)
    assert planned().changes == ("without flash-attention-3: absent-kernels is not installed",)
    assert planned(optimizations="none").training_options.optimizations == ()
    both = planned(optimizations="one-pass-update, epilogues")
    assert both.training_options.optimizations == (Optimization.EPILOGUES, Optimization.ONE_PASS_UPDATE)
    assert both.changes == ()


@pytest.mark.usefixtures("two_rules")
def test_optimizations_that_a_launch_cannot_have_are_refused():
    assert planned().training_options == DEFAULT_OPTIONS
    with pytest.raises(InputError, match=r"unknown optimization.*'speed'.*none, default, epilogues"):
        planned(optimizations="speed")
    with pytest.raises(InputError, match=r"epilogues.*no CUDA device"):
        planned(optimizations="epilogues")


@pytest.mark.usefixtures("one_gpu", "two_rules")
def test_an_optimization_that_is_asked_for_needs_its_package():
    with pytest.raises(InputError, match="absent-kernels"):
        planned(optimizations="flash-attention-3")


@pytest.mark.usefixtures("one_gpu", "two_rules")
def test_launches_without_optimizations_compare_with_those_from_before_there_were_any():
    plain = policy(job_for(planned(optimizations="none"), CORPUS, ""))
    assert "optimizations" not in plain["script"]
    assert '"optimizations":["epilogues"]' in policy(job_for(planned(), CORPUS, ""))["script"]
