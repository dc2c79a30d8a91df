"""How DistributedDataParallel averages gradients: by itself, or by one of PyTorch's compressing hooks."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from suite.job.options import POWER_SGD_RANK, Averaging


def compress_gradients(
    modules: Iterable[nn.Module], averaging: Averaging, *, group: dist.ProcessGroup, exact_steps: int
) -> None:
    """Register PyTorch's hook for `averaging` with every DistributedDataParallel of `modules`; exact ones need none.

    PowerSGD has rank 4, error feedback and a warm start, PyTorch's default, and averages exactly in `exact_steps`.
    """
    for module in modules:
        if not isinstance(module, DistributedDataParallel):
            continue
        if averaging is Averaging.FP16:
            module.register_comm_hook(group, fp16_compress_hook)
        elif averaging is Averaging.BF16:
            module.register_comm_hook(group, bf16_compress_hook)
        elif averaging is Averaging.POWER_SGD:
            state = PowerSGDState(
                group, matrix_approximation_rank=POWER_SGD_RANK, start_powerSGD_iter=max(2, exact_steps)
            )
            module.register_comm_hook(state, powerSGD_hook)
