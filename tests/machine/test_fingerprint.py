"""What a record says of the hardware tells processors of one name apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.machine.fingerprint import cpu_named, hardware

EPYC = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: {}\nmodel name\t: AMD EPYC\n"


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (EPYC.format(1), "AMD EPYC (family 25, model 1)"),
        (EPYC.format(17), "AMD EPYC (family 25, model 17)"),
        ("processor\t: 0\nmodel name\t: Some core\n", "Some core"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "unknown"),
    ],
)
def test_a_processor_has_its_generation_beside_its_name(tmp_path: Path, cpuinfo: str, name: str) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo, encoding="utf-8")
    assert cpu_named(str(path)) == name


def test_the_hardware_of_this_machine_has_it() -> None:
    assert hardware()["cpu"] == cpu_named()
