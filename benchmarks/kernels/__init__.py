"""Kernels against eager PyTorch, torch.compile and Liger-Kernel: one module a kernel, and what times and tells them."""
