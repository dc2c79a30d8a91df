"""The accelerator "this-cpu": what a machine's /proc/cpuinfo says of its peak."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from reference_runs import this_cpu as subject
from reference_runs.accelerator import ACCELERATORS, Accelerator, accelerator, dense_peak_flop_per_second, load
from reference_runs.errors import InputError
from reference_runs.sourced import Kind

ON_X86_LINUX = pytest.mark.skipif(
    platform.machine() != "x86_64" or not subject.CPUINFO.exists(),
    reason="needs an x86-64 CPU under Linux, which tells its clock in /proc/cpuinfo",
)


def cpuinfo(threads: list[dict[str, str]]) -> str:
    return "\n".join("".join(f"{key}\t: {value}\n" for key, value in thread.items()) for thread in threads)


def on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, usable: set[int], highest_khz: int | None = None
) -> Accelerator:
    """this-cpu on a machine whose /proc/cpuinfo is `text`."""
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    (tmp_path / "meminfo").write_text("MemTotal:        1000 kB\nMemFree:          10 kB\n", encoding="utf-8")
    if highest_khz is not None:
        (tmp_path / f"khz{min(usable)}").write_text(f"{highest_khz}\n", encoding="utf-8")
    monkeypatch.setattr(subject, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(subject, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(subject, "HIGHEST_KHZ", f"{tmp_path}/khz{{}}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable, raising=False)
    return accelerator("this-cpu")


# two sockets of two cores of two threads, numbered as Linux numbers them: the second threads come last
XEON = [
    {
        "processor": str(4 * thread + 2 * socket + core),
        "model name": "Xeon",
        "cpu MHz": f"{2000 + 100 * core}.000",
        "physical id": str(socket),
        "core id": str(core),
        "flags": "fpu sse2 avx avx2 fma avx512f avx512_bf16 amx_bf16 amx_tile",
    }
    for thread in range(2)
    for socket in range(2)
    for core in range(2)
]


def test_a_cpus_peak_is_cores_times_clock_times_the_widest_extension(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = on(monkeypatch, tmp_path, cpuinfo(XEON), set(range(8)))
    # 4 cores at the highest clock, 2.1 GHz; 2 units * 16 lanes * 2 flop; 16 * 16 * 32 * 2 flop in 16 cycles
    assert device.peak_flop_per_second == {"fp32": 4 * 2.1e9 * 64, "bf16": 4 * 2.1e9 * 1024}
    assert device.title == "The CPU that the command runs on: Xeon, 4 cores"
    assert device.board.memory_bytes == 1000 * 1024
    fact = device.facts["peak_flop_per_second.fp32"]
    assert fact.kind is Kind.DERIVED
    assert fact.source == "cpuinfo 4 cores * 2.1 GHz * 64 flop per core and cycle (avx512f)"
    assert {label for label in device.facts if label.startswith("flop_per_cycle")} == {
        "flop_per_cycle.fp32_avx512f",
        "flop_per_cycle.bf16_amx_bf16",
    }


def test_threads_of_one_core_count_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for usable, cores in (({0, 4}, 1), ({0, 1}, 2), ({0, 2}, 2), ({0, 1, 2, 3}, 4), ({3, 7}, 1), ({1, 4, 5}, 2)):
        device = on(monkeypatch, tmp_path, cpuinfo(XEON), usable, highest_khz=3_000_000)
        assert device.peak_flop_per_second["fp32"] == cores * 3e9 * 64, usable


AVX512 = {"flags": "avx2 avx512f avx512_bf16"}


@pytest.mark.parametrize(
    ("thread", "peaks"),
    [
        ({"flags": "sse2"}, {"fp32": 8}),
        ({"flags": "sse2 avx2"}, {"fp32": 32}),
        ({"flags": "sse2 avx2 avx512f"}, {"fp32": 64}),
        ({"flags": "avx2 avx512f avx512_bf16 avx512_fp16"}, {"fp32": 64, "bf16": 128, "fp16": 128}),
        ({"Features": "fp asimd"}, {"fp32": 16}),
        # Zen 4 executes wide instructions in halves, Zen 5 does not; those of before have none, whatever their family
        (AVX512 | {"vendor_id": "AuthenticAMD", "cpu family": "25"}, {"fp32": 32, "bf16": 64}),
        (AVX512 | {"vendor_id": "AuthenticAMD", "cpu family": "26"}, {"fp32": 64, "bf16": 128}),
        (AVX512 | {"vendor_id": "GenuineIntel", "cpu family": "6"}, {"fp32": 64, "bf16": 128}),
        ({"flags": "avx2", "vendor_id": "AuthenticAMD", "cpu family": "25"}, {"fp32": 32}),
        ({"flags": "avx2", "vendor_id": "AuthenticAMD", "cpu family": "26"}, {"fp32": 32}),
    ],
)
def test_each_extension_has_its_flop_a_cycle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, thread: dict[str, str], peaks: dict[str, int]
) -> None:
    device = on(monkeypatch, tmp_path, cpuinfo([{"processor": "0"} | thread]), {0}, highest_khz=1_000_000)
    assert device.peak_flop_per_second == {dtype: 1e9 * amount for dtype, amount in peaks.items()}


@pytest.mark.parametrize(
    ("thread", "usable", "complaint"),
    [
        ({"processor": "0", "flags": "avx2"}, {0}, "tells no clock of this CPU"),
        (
            {"processor": "0", "flags": "fpu", "cpu MHz": "2000"},
            {0},
            "a flop_per_cycle; allowed: avx512f_halves, avx512f,",
        ),
        ({"processor": "0", "flags": "avx2", "cpu MHz": "2000"}, {1}, "lists no CPU that this process may use"),
    ],
)
def test_a_cpu_whose_peak_is_unknown_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, thread: dict[str, str], usable: set[int], complaint: str
) -> None:
    with pytest.raises(InputError) as refusal:
        on(monkeypatch, tmp_path, cpuinfo([thread]), usable)
    assert complaint in str(refusal.value)


def test_a_system_that_does_not_describe_its_cpu_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subject, "CPUINFO", tmp_path / "none")
    with pytest.raises(InputError, match="cannot read the CPU of this machine: No such file or directory; allowed: Li"):
        accelerator("this-cpu")


@ON_X86_LINUX
def test_a_users_file_may_correct_what_this_cpu_assumes(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    text = (ACCELERATORS / "this_cpu.toml").read_text(encoding="utf-8")
    path.write_text(
        text.replace("memory_bytes_per_second = { value = 51.2", "memory_bytes_per_second = { value = 300"),
        encoding="utf-8",
    )
    assert load(path).board.memory_bytes_per_second == 300e9
    assert load(path).peak_flop_per_second == pytest.approx(accelerator("cpu").peak_flop_per_second)


@ON_X86_LINUX
def test_this_cpu_is_this_machine() -> None:
    device = accelerator("this-cpu")
    # a container may show a part of the machine's memory
    assert 2**28 < device.board.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fp32 = dense_peak_flop_per_second(device, "fp32")
    # one core at 0.5 GHz with sse2, up to every thread at 7 GHz with avx512f
    assert 0.5e9 * 8 <= fp32 <= len(os.sched_getaffinity(0)) * 7e9 * 64
    assumed = {label for label, fact in device.facts.items() if fact.kind is Kind.ASSUMED}
    assert {"board.memory_bytes_per_second", "board.link_bytes_per_second_both_ways"} <= assumed


@ON_X86_LINUX
def test_accelerators_load_without_torch_and_numpy() -> None:
    program = (
        "import sys; from reference_runs.accelerator import accelerator; accelerator('h100'); accelerator('cpu'); "
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(("flags", "virtual"), [("fpu hypervisor avx2", True), ("fpu avx2", False)])
def test_a_hypervisor_is_known_by_its_flag(tmp_path, monkeypatch, flags: str, virtual: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nmodel name\t: x\n", encoding="utf-8")
    monkeypatch.setattr(subject, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(subject, "FIRMWARE", tmp_path)
    monkeypatch.setattr(subject, "HYPERVISORS", ())
    assert subject.is_virtual_machine() == virtual
    monkeypatch.setattr(subject, "CPUINFO", tmp_path / "absent")
    assert not subject.is_virtual_machine()


@pytest.mark.parametrize(
    ("vendor", "product", "virtual"),
    [
        ("Amazon EC2", "m7g.4xlarge", True),
        ("Amazon EC2", "m7g.metal", False),
        ("QEMU", "KVM Virtual Machine", True),
        ("Google", "Google Compute Engine", True),
        ("Microsoft Corporation", "Virtual Machine", True),
        ("Microsoft Corporation", "C2080", False),
        ("Supermicro", "ARS-111GL-NHR", False),
        ("", "", False),
    ],
)
def test_a_processor_without_that_flag_is_virtual_where_firmware_says_so(
    tmp_path, monkeypatch, vendor, product, virtual
):
    """ARM has no such flag, and a hypervisor can hide that of x86."""
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd sve\n", encoding="utf-8")
    (tmp_path / "sys_vendor").write_text(f"{vendor}\n", encoding="utf-8")
    (tmp_path / "product_name").write_text(f"{product}\n", encoding="utf-8")
    monkeypatch.setattr(subject, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(subject, "FIRMWARE", tmp_path)
    monkeypatch.setattr(subject, "HYPERVISORS", (tmp_path / "type",))
    assert subject.is_virtual_machine() == virtual
    (tmp_path / "type").write_text("xen\n", encoding="utf-8")
    assert subject.is_virtual_machine()
