"""A wrong bit in a replay, in memory, in a product or in a message is seen, and right ones repeat."""

from __future__ import annotations

import pytest
import torch

from suite.execute import probe
from suite.probe_job import ProbeJob
from tests.launches import small_plan

CPU = torch.device("cpu")


@pytest.fixture
def job(tmp_path):
    plan = small_plan(ranks=1)
    return ProbeJob(
        directory=str(tmp_path),
        device="cpu",
        ranks=1,
        threads=1,
        architecture=plan.architecture,
        recipe=plan.recipe,
        seed=5,
        replays=2,
        replay_steps=2,
        samples=2,
        exchanges=2,
        exchange_seconds=0.0,
        exchange_bytes=4096,
        soak_seconds=0.0,
        soak_bytes=1 << 16,
        collective_timeout_seconds=10.0,
    )


def replayed(job):
    """Hashes of a replay's steps."""
    events = []
    probe.run_replay(job, 0, CPU, events.append)
    return [(event.loss, event.gradients, event.parameters) for event in events]


def test_replays_repeat_each_other_to_the_bit(job):
    first = replayed(job)
    assert first == replayed(job)
    assert len({hashes for step in first for hashes in step}) == 6  # every step has hashes of its own


def test_one_bit_of_one_weight_changes_every_hash_behind_it(job, monkeypatch):
    right, update = replayed(job), probe.update

    def flipping(decoder):
        update(decoder)
        weight = next(iter(decoder.parameters())).detach().view(-1).view(torch.uint8)
        weight[7] ^= 1

    monkeypatch.setattr(probe, "update", flipping)
    wrong = replayed(job)
    assert wrong[0][:2] == right[0][:2]
    assert wrong[0][2] != right[0][2]


def test_the_hash_is_of_every_byte():
    tensor = torch.arange(1000, dtype=torch.float32).to(torch.bfloat16)
    before = probe.digest([tensor])
    tensor.view(torch.uint8)[1999] ^= 1
    assert probe.digest([tensor]) != before


def test_patterns_are_the_same_whole_or_in_parts_and_differ_by_salt():
    whole = probe.pattern(0, 10_000, 3, CPU)
    assert torch.equal(whole[4_000:], probe.pattern(4_000, 6_000, 3, CPU))
    assert not torch.equal(whole, probe.pattern(0, 10_000, 4, CPU))
    assert len(whole.unique()) > 9_990
    far = probe.pattern(1 << 40, 8, 0, CPU)  # beyond what 32 bits count
    assert (far >= 0).all()


def test_differences_count_wrong_elements_and_describe_the_first():
    right = torch.zeros(5)
    wrong = torch.tensor([0.0, 0.0, float("nan"), 1.0, 0.0])
    assert probe.differences(right, right) == (0, "")
    assert probe.differences(wrong, right) == (2, "element 2 is nan, not 0.0")


def test_a_soak_verifies_all_of_its_memory_and_sees_one_wrong_element(job, monkeypatch):
    good = probe.soaked(job, CPU, lambda _event: None)
    assert (good.bytes, good.passes, good.wrong) == (1 << 16, 1, 0)
    copy = torch.Tensor.copy_

    def flipping(self, *arguments, **options):
        done = copy(self, *arguments, **options)
        if self.dtype is torch.int32 and self.numel() == 1 << 13:
            self.view(-1)[-1] ^= 1
        return done

    monkeypatch.setattr(torch.Tensor, "copy_", flipping)
    bad = probe.soaked(job, CPU, lambda _event: None)
    assert bad.wrong == 1
    assert bad.first.startswith("memory from element 0, pass 0: element 8191 is ")
