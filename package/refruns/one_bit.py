"""1-bit Adam for DistributedDataParallel in a program of your own (docs/one_bit_adam.md); it needs torch alone."""

from __future__ import annotations

from refruns.modules import serve

serve(kernels=True)

from suite.execute.parallel.one_bit import OneBitAdam, Renewal, Settled, parameter_groups  # noqa: E402  # served above

__all__ = ["OneBitAdam", "Renewal", "Settled", "parameter_groups"]
