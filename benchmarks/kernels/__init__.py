"""Kernels against eager PyTorch, torch.compile and Liger-Kernel: cases, timing, tables and plots."""
