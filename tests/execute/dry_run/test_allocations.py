"""Storages are followed from their first operator to their end."""

from __future__ import annotations

import torch

from suite.execute.dry_run.allocations import MOST_MOMENTS, Allocations

KIB = 1024


def block() -> torch.Tensor:
    return torch.empty(KIB, dtype=torch.uint8)


def test_a_storage_counts_once_until_nothing_refers_to_it() -> None:
    allocations = Allocations(lambda: "forward pass")
    allocations.record()
    tensor = block()
    view = tensor[1:]
    allocations.see([tensor, (view, 3)])
    del tensor
    allocations.see(view)
    other = block()
    allocations.see(other)
    del view
    allocations.see(block())
    (peak,), moments = allocations.history()
    assert allocations.peak == peak.total == 2 * KIB
    assert [moment.total for moment in moments] == [0, KIB, 2 * KIB, KIB, 2 * KIB, KIB]


def test_what_lived_before_the_record_is_in_every_moment() -> None:
    phase = ["weights"]
    allocations = Allocations(lambda: phase[0])
    weight = block()
    allocations.see(weight)
    allocations.record()
    phase[0] = "forward pass"
    kept = block()
    allocations.see(kept)
    (before, peak), moments = allocations.history()
    assert moments[0].bytes == before.bytes == {"weights": KIB}
    assert peak.bytes == {"weights": KIB, "forward pass": KIB}
    assert peak.phase == "forward pass"


def test_a_storage_has_its_name_from_its_allocation_on() -> None:
    allocations = Allocations(lambda: "backward pass")
    allocations.record()
    gradient = block()
    allocations.see(gradient)
    allocations.name("gradients", [gradient.view(2, -1)])
    _, moments = allocations.history()
    assert moments[-1].bytes == {"gradients": KIB}


def test_a_storage_that_is_resized_counts_with_its_new_size() -> None:
    allocations = Allocations(lambda: "forward pass")
    allocations.record()
    gathered = block()
    allocations.see(gathered)
    gathered.untyped_storage().resize_(0)
    allocations.resized(gathered.untyped_storage())
    allocations.pass_through(KIB // 2, "message buffers")
    _, moments = allocations.history()
    assert [moment.total for moment in moments] == [0, KIB, 0, KIB // 2, 0]
    assert allocations.peak == KIB


def test_a_long_history_keeps_its_peak() -> None:
    allocations = Allocations(lambda: "forward pass")
    allocations.record()
    for _ in range(MOST_MOMENTS):
        allocations.see(block())
    both = block(), block()
    allocations.see(both)
    del both
    for _ in range(MOST_MOMENTS):
        allocations.see(block())
    (peak,), moments = allocations.history()
    assert peak.total == allocations.peak == 2 * KIB
    assert len(moments) <= MOST_MOMENTS + 1
    assert peak in moments
