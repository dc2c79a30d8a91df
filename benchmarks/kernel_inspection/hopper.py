"""An H100 SXM: how much of everything it has, and how many programs fit a processor at once."""

from __future__ import annotations

PROCESSORS = 132
SCHEDULERS = 4
CYCLES_PER_SECOND = 1.83e9  # 989.4 Tflop/s dense in bf16 over 132 processors times 4096 flop a cycle
BYTES_PER_SECOND = 3.35e12  # data sheet of the H100 SXM5
L2_BYTES = 50 * 2**20
# Of a load under full load: assumed, as in kernels/tiles.py. A lone load takes 479 cycles, 0.27 us (Luo et al. 2024,
# arXiv 2402.13499, latencies of memory on an H100 PCIe; from memory); what is between them is waiting in queues.
LATENCY_SECONDS = 0.7e-6

# CUDA C++ Programming Guide, technical specifications of compute capability 9.0
REGISTERS = 65_536
REGISTERS_AT_ONCE = 256  # that a warp gets
MOST_WARPS = 64
MOST_PROGRAMS = 32
SHARED_BYTES = 228 * 1024
SHARED_BYTES_OF_THE_SYSTEM = 1024  # of each program


def resident_programs(*, registers: int, shared_bytes: int, warps: int) -> int:
    """Programs of so many warps that a processor holds at once; registers are those of a thread."""
    of_warp = -(-registers * 32 // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    by_registers = REGISTERS // of_warp // warps
    by_shared = SHARED_BYTES // (shared_bytes + SHARED_BYTES_OF_THE_SYSTEM)
    return min(by_registers, by_shared, MOST_WARPS // warps, MOST_PROGRAMS)
