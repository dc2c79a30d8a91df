from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.execute.parallel.one_bit.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the ranks: sums are the same bits
    ranks = Pool()
    yield ranks
    ranks.close()
    torch.set_num_threads(threads)
