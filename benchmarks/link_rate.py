"""One rank of a measurement of the link between hosts: python -m benchmarks.link_rate ALL_REDUCE_BYTES EXCHANGE_BYTES.

Rank 0 prints a JSON object: bytes a second that a rank sends in an all-reduce of a tensor of that size, and in an
all-to-all and an all-gather of the other size one after the other, as gloo does them here.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from suite.execute.parallel.one_bit.all_reduce import all_gather

REPEATS = 3


def main() -> None:
    """Join the group that torchrun's environment names, measure, and print."""
    reduced_bytes, exchanged_bytes = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    reduced = torch.zeros(reduced_bytes // 4)
    packed = torch.zeros(exchanged_bytes // ranks * ranks, dtype=torch.uint8)
    arrived, whole = torch.empty_like(packed), torch.empty_like(packed)

    def exchange() -> None:
        dist.all_to_all_single(arrived, packed)
        all_gather(whole, packed[: packed.numel() // ranks])

    share = (ranks - 1) / ranks
    rates = {
        "all_reduce": 2 * share * reduced_bytes / _seconds(lambda: dist.all_reduce(reduced)),
        "exchange": 2 * share * packed.numel() / _seconds(exchange),
    }
    if dist.get_rank() == 0:
        print(json.dumps(rates))
    dist.barrier()
    dist.destroy_process_group()


def _seconds(call: Callable[[], object]) -> float:
    """Median of calls that all ranks begin together, the first left out."""
    times = []
    for _ in range(REPEATS + 1):
        dist.barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
