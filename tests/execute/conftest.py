"""A process that is the only rank of a launch, or has compiled nothing yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    """The process group of this one rank. Random numbers, threads and fused attention's choice are restored."""
    numbers, threads = torch.get_rng_state(), torch.get_num_threads()
    stores_scores = torch.backends.cuda.math_sdp_enabled()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
        torch.set_rng_state(numbers)
        torch.set_num_threads(threads)
        torch.backends.cuda.enable_math_sdp(stores_scores)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Forget what was compiled, before a test and after it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
