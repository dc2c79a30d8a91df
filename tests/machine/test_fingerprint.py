"""The hardware in a record tells processors of one name apart."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from suite.machine import fingerprint
from suite.machine.devices import CudaDevice
from suite.machine.fingerprint import cpu_named, driver_version, gpu_models, hardware, suite_version

EPYC = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: {}\nmodel name\t: AMD EPYC\n"


def test_a_processor_has_its_generation_beside_its_name(tmp_path: Path) -> None:
    names = {
        EPYC.format(1): "AMD EPYC (family 25, model 1)",
        EPYC.format(17): "AMD EPYC (family 25, model 17)",
        "processor\t: 0\nmodel name\t: Some core\n": "Some core",
        "processor\t: 0\nCPU implementer\t: 0x41\n": "unknown",
    }
    path = tmp_path / "cpuinfo"
    for cpuinfo, name in names.items():
        path.write_text(cpuinfo, encoding="utf-8")
        assert cpu_named(str(path)) == name
    assert hardware()["cpu"] == cpu_named()


def test_a_driver_is_known_by_its_number() -> None:
    kernel = "NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@host)"
    assert driver_version(kernel) == "580.159.04"
    assert driver_version("unknown") == "unknown"


def test_a_checkout_is_modified_by_code_and_not_by_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    for name, text in (("pyproject.toml", '[project]\nversion = "1.2"\n'), ("results/recorded/TABLES.md", "a\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr("suite.machine.fingerprint.ROOT", tmp_path)
    clean = suite_version()
    assert re.fullmatch(r"1\.2 \([0-9a-f]{12}\)", clean)
    (tmp_path / "results/recorded/TABLES.md").write_text("b\n")
    (tmp_path / "new.txt").touch()
    assert suite_version() == clean
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2"\n\n')
    assert suite_version() == clean.removesuffix(")") + ", modified)"


def test_gpus_are_the_drivers_or_in_a_container_without_its_files_torchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = CudaDevice(name="NVIDIA H100 80GB HBM3", uuid="u", pci="0000:1b:00.0", memory_bytes=1)
    monkeypatch.setattr(fingerprint, "cuda_device_list", lambda: (one, one))
    assert gpu_models(tmp_path) == ["NVIDIA H100 80GB HBM3"] * 2
    for number, model in enumerate(("NVIDIA H200", "NVIDIA A100")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "information").write_text(f"Model: \t\t {model}\nIRQ: 1\n", encoding="utf-8")
    assert sorted(gpu_models(tmp_path)) == ["NVIDIA A100", "NVIDIA H200"]
