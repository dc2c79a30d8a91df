"""Kernels by their compiled code for sm_90: registers, occupancy, instructions, and what these allow on paper."""
