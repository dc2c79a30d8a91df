"""GPUs that kernels are compiled for, and what of a multiprocessor a program takes: no GPU is asked."""

from __future__ import annotations

from typing import NamedTuple

from triton.backends.compiler import GPUTarget

SCHEDULERS = 4  # of a multiprocessor, each with registers of its own: partitions of an SM, SIMDs of a compute unit
LANE_REGISTERS = 512  # of each lane of a scheduler: 16,384 of 32 lanes on NVIDIA, 512 vector registers of 64 on AMD
ALLOCATED_REGISTERS = 8  # a thread gets so many at once


class CompilationTarget(NamedTuple):
    """GPU that Triton compiles for.

    Args:
        triton: its name for Triton.
        multiprocessors: of the product below; grids depend on it. Compute units on AMD.
        warps: that a multiprocessor holds at once; wavefronts on AMD.
        programs: that it holds at once, of two warps or more.
        shared_bytes: of a multiprocessor.
        reserved_bytes: of these, what each program takes besides its own.
    """

    triton: GPUTarget
    multiprocessors: int
    warps: int
    programs: int
    shared_bytes: int
    reserved_bytes: int

    @property
    def warp_threads(self) -> int:
        """Threads of a warp."""
        return int(self.triton.warp_size)

    def programs_at_once(self, *, registers: int, shared_bytes: int, warps: int, programs: int) -> int:
        """Programs that a multiprocessor holds at once: the fewest that one of its limits allows.

        Args:
            registers: of a thread.
            shared_bytes: of a program.
            warps: of a program.
            programs: of the launch: there are no more than its share.
        """
        allocated = -(-registers // ALLOCATED_REGISTERS) * ALLOCATED_REGISTERS
        by_registers = SCHEDULERS * (LANE_REGISTERS // max(1, allocated)) // warps
        by_shared = self.shared_bytes // max(1, shared_bytes + self.reserved_bytes)
        share = -(-programs // self.multiprocessors)
        return min(by_registers, by_shared, self.warps // warps, self.programs, share)


# NVIDIA: H100 SXM and B200. CUDA C++ Programming Guide 13.0, technical specifications per compute capability: warps,
# blocks, shared memory; 1 KiB of each block is the system's. AMD: MI300X and MI355X. LLVM, AMDGPUUsage and
# AMDGPUBaseInfo.cpp: 8 waves a SIMD, 16 workgroups with barriers; CDNA 3 and 4 white papers: compute units, LDS.
TARGETS = {
    "sm_90": CompilationTarget(GPUTarget("cuda", 90, 32), 132, 64, 32, 228 * 1024, 1024),
    "sm_100": CompilationTarget(GPUTarget("cuda", 100, 32), 148, 64, 32, 228 * 1024, 1024),
    "gfx942": CompilationTarget(GPUTarget("hip", "gfx942", 64), 304, 32, 16, 64 * 1024, 0),
    "gfx950": CompilationTarget(GPUTarget("hip", "gfx950", 64), 256, 32, 16, 160 * 1024, 0),
}
