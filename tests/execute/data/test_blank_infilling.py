"""Samples of blank infilling, taken apart again: what is hidden, what sees it, and how much of each kind there is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_runs.catalog import reference_run
from reference_runs.run import Recipe
from suite.execute.data.blank_infilling import BlankInfilling, Sample
from suite.execute.data.token_stream import TokenStream, token_stream
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.loss import NOT_LEARNED
from suite.job.corpus import Corpus
from suite.reproduce.plan import Plan, job_for
from tests.support.launches import FP32_WITHOUT_DROPOUT, small_plan

GLM = reference_run("glm-130b")
TEXT = range(1, 10**6)  # every token differs from every other, so that each says where in the text it stood
FIRST_SPECIAL = 10**6
MASK, GMASK, SOP, EOP = range(FIRST_SPECIAL, FIRST_SPECIAL + 4)


def blanks(sequence: int, *, seed: int = 0, **mix: Any) -> BlankInfilling:
    architecture = msgspec.structs.replace(
        GLM.architecture, vocabulary=FIRST_SPECIAL, padded_vocabulary=FIRST_SPECIAL + 4, sequence=sequence
    )
    return BlankInfilling(architecture, msgspec.structs.replace(GLM.recipe, **mix), seed=seed)


class Window(NamedTuple):
    """Places of a window's visible part, and of each of its pieces."""

    visible: range
    pieces: list[range]


def windows(sample: Sample) -> Iterator[Window]:
    """The windows of a sample, read off its tokens alone: what follows a piece and is no [sop] begins another window.

    A piece is a [sop] and what has a target behind it.
    """
    at = 0
    while at < len(sample.tokens):
        first = at
        while sample.tokens[at] != SOP:
            at += 1
        visible, pieces = range(first, at), []
        while at < len(sample.tokens) and sample.tokens[at] == SOP:
            start, at = at, at + 1
            while at < len(sample.tokens) and sample.tokens[at] != SOP and sample.targets[at] != NOT_LEARNED:
                at += 1
            pieces.append(range(start, at))
        yield Window(visible, pieces)


KINDS = {
    "instructions": {"instruction_share": 0.9999999},
    "prefixes": {"instruction_share": 0.0, "gmask_share": 0.9999999},
    "spans": {"instruction_share": 0.0, "gmask_share": 0.0},
    "the recorded mix": {},
}
samples = st.builds(
    lambda kind, sequence, number, seed: blanks(sequence, seed=seed, **KINDS[kind]).sample(TEXT[:sequence], number),
    st.sampled_from(sorted(KINDS)),
    st.integers(16, 200),
    st.integers(0, 10**9),
    st.integers(0, 2**32 - 1),
)


def hidden_text(sample: Sample, piece: range) -> list[int]:
    """The text that a piece generates, without [eop]."""
    targets = [sample.targets[place] for place in piece]
    return targets[:-1] if targets[-1] == EOP else targets


@given(samples)
def test_a_sample_fills_the_sequence_and_each_part_of_it_sees_what_it_may(sample: Sample) -> None:
    length = len(sample.tokens)
    assert [len(part) for part in sample] == [length] * 5
    covered = 0
    for window in windows(sample):
        assert window.visible.start == covered
        covered = window.pieces[-1].stop
        inside = range(window.visible.start, covered)
        for at in range(length):
            sees = [to for to in range(length) if sample.seen_from[to] <= at < sample.seen_until[to]]
            if at in window.visible:
                assert sees == list(window.visible)
            elif at in inside:
                assert sees == list(range(inside.start, at + 1))
    assert covered == length


@given(samples)
def test_every_learned_target_is_the_token_that_follows_and_no_visible_token_has_one(sample: Sample) -> None:
    for window in windows(sample):
        assert all(sample.targets[place] == NOT_LEARNED for place in window.visible)
        for piece in window.pieces:
            assert sample.tokens[piece.start] == SOP
            assert [sample.tokens[at] for at in piece[1:]] == [sample.targets[at] for at in piece[:-1]]
            assert sample.targets[piece[-1]] == EOP or sample.tokens.count(GMASK) == 1
            text = hidden_text(sample, piece)
            assert text
            assert text == list(range(text[0], text[0] + len(text)))  # in the order of the text


@given(samples)
def test_pieces_put_in_place_of_their_masks_give_the_text_back(sample: Sample) -> None:
    for window in windows(sample):
        visible = [sample.tokens[at] for at in window.visible]
        assert visible.count(MASK) + visible.count(GMASK) == len(window.pieces)
        # text is visible before the place of a mask or behind it, so its number in the text says which mask is whose
        pieces = sorted(hidden_text(sample, piece) for piece in window.pieces)
        restored = [piece for token in visible for piece in (pieces.pop(0) if token in (MASK, GMASK) else [token])]
        assert restored == list(range(restored[0], restored[0] + len(restored)))


@given(samples)
def test_a_span_stands_at_its_masks_position_and_what_follows_a_prefix_counts_on(sample: Sample) -> None:
    for window in windows(sample):
        visible = [sample.tokens[at] for at in window.visible]
        assert [sample.positions[at] for at in window.visible] == list(range(len(visible)))
        in_order = sorted(window.pieces, key=lambda piece: sample.targets[piece.start])
        places = [place for place, token in enumerate(visible) if token in (MASK, GMASK)]
        for piece, place in zip(in_order, places, strict=True):
            got = [sample.positions[at] for at in piece]
            if visible[place] == GMASK:
                assert got == list(range(place + 1, place + 1 + len(piece)))
            else:
                assert got == [place] * len(piece)


@given(st.integers(12, 600), st.integers(0, 10**6), st.sampled_from([0.05, 0.15, 0.5]), st.integers(1, 4))
def test_spans_cover_the_recorded_share_of_each_window_to_within_a_token(
    sequence: int, number: int, share: float, packed: int
) -> None:
    mix = {**KINDS["spans"], "mask_share": share, "packed_samples": packed}
    sample = blanks(sequence, **mix).sample(TEXT[:sequence], number)
    found = list(windows(sample))
    assert len(found) == packed
    assert {window.pieces[-1].stop - window.visible.start for window in found} <= {
        sequence // packed,
        -(-sequence // packed),
    }
    for window in found:
        hidden = sum(len(hidden_text(sample, piece)) for piece in window.pieces)
        text = hidden + len(window.visible) - len(window.pieces)
        assert abs(hidden - share * text) <= 1
        tokens = [sample.tokens[at] for at in window.visible]
        assert all((left, right) != (MASK, MASK) for left, right in itertools.pairwise(tokens))


def test_the_kinds_have_the_recorded_shares_and_what_is_hidden_the_recorded_lengths() -> None:
    count = 4000
    made = [blanks(256).sample(TEXT[:256], number) for number in range(count)]
    kinds = [(GMASK in sample.tokens, EOP in sample.targets) for sample in made]
    # each count is binomial; five of its deviations
    for kind, share in {(True, True): 0.05, (True, False): 0.95 * 0.7, (False, True): 0.95 * 0.3}.items():
        assert abs(kinds.count(kind) / count - share) <= 5 * math.sqrt(share * (1 - share) / count)
    rests = [len(hidden_text(s, w.pieces[0])) for s, k in zip(made, kinds, strict=True) if not k[1] for w in windows(s)]
    # uniform on 1 .. 255: mean 128, deviation sqrt((255^2 - 1) / 12)
    assert min(rests) >= 1
    assert max(rests) <= 255
    assert abs(sum(rests) / len(rests) - 128) <= 5 * math.sqrt((255**2 - 1) / 12 / len(rests))


def test_spans_have_poisson_lengths_of_one_or_more() -> None:
    # in one window of 20000 tokens about 850 spans are drawn, of which the last alone is cut
    mix = {**KINDS["spans"], "packed_samples": 1}
    sample = blanks(20_000, **mix).sample(TEXT[:20_000], 0)
    (window,) = windows(sample)
    lengths = [len(hidden_text(sample, piece)) for piece in window.pieces]
    # Poisson of mean m given that it is not 0: mean m / (1 - e^-m), second moment (m + m^2) / (1 - e^-m)
    mean, square = (moment / (1 - math.exp(-3)) for moment in (3, 12))
    assert abs(sum(lengths) / len(lengths) - mean) <= 5 * math.sqrt((square - mean**2) / len(lengths))
    ones = 3 * math.exp(-3) / (1 - math.exp(-3))
    assert abs(lengths.count(1) / len(lengths) - ones) <= 5 * math.sqrt(ones * (1 - ones) / len(lengths))


def glm_plan(**recipe: Any) -> Plan:
    plan = small_plan(ranks=1)
    architecture = msgspec.structs.replace(
        GLM.architecture,
        layers=2,
        hidden=24,
        heads=3,
        kv_heads=3,
        head_dim=8,
        ffn_hidden=32,
        rotary_dim=8,
        vocabulary=50,
        padded_vocabulary=56,
        sequence=32,
    )
    changes: dict[str, Any] = {**FP32_WITHOUT_DROPOUT, "init_std": 0.5, **recipe}
    glm_recipe: Recipe = msgspec.structs.replace(GLM.recipe, **changes)
    return msgspec.structs.replace(plan, architecture=architecture, recipe=glm_recipe)


def stream(plan: Plan, path: Path) -> TokenStream:
    """The samples of a plan from 60 texts of random tokens."""
    tokens = torch.randint(50, (60 * 32 + 1,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    (path / "tokens").write_bytes(tokens.numpy().tobytes())
    corpus = Corpus(
        source="", sha256="", text_bytes=0, files=0, vocabulary=50, tokens=len(tokens), tokens_file=str(path / "tokens")
    )
    return token_stream(job_for(plan, corpus, str(path)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_hidden_token_changes_no_logit_from_which_it_is_generated(kind: str, tmp_path: Path) -> None:
    plan = glm_plan(**KINDS[kind])
    decoder = Decoder(plan.architecture, plan.recipe)
    initialise(decoder, plan.recipe, seed=1)
    batch = stream(plan, tmp_path).micro_batch(0, 12)
    arguments = {name: value for name, value in batch.arguments.items() if name != "targets_BT"}
    before = decoder(batch.tokens_BT, **arguments)
    learned = batch.arguments["targets_BT"] != NOT_LEARNED
    changed = 0
    for at in range(1, 32):
        # what is hidden is fed behind the place that generates it
        samples = (learned[:, at - 1] & learned[:, at] & (batch.tokens_BT[:, at] < 50)).nonzero().flatten().tolist()
        if not samples:
            continue
        other = batch.tokens_BT.clone()
        other[samples, at] = (other[samples, at] + 1) % 50
        after = decoder(other, **arguments)
        for sample in samples:
            assert torch.equal(before[sample, :at], after[sample, :at])
            assert not torch.equal(before[sample, at], after[sample, at])
            changed += 1
    assert changed > 20


def test_a_sample_depends_on_seed_and_number_alone(tmp_path: Path) -> None:
    plan = glm_plan()
    first = stream(plan, tmp_path)
    whole = first.micro_batch(0, 90)
    for start, count in ((0, 1), (7, 3), (61, 2), (5, 1)):
        part = first.micro_batch(start, count)
        assert torch.equal(part.tokens_BT, whole.tokens_BT[start : start + count])
        for name, value in part.arguments.items():
            assert torch.equal(value, whole.arguments[name][start : start + count]), name
    other = stream(msgspec.structs.replace(plan, seed=plan.seed + 1), tmp_path).micro_batch(0, 90)
    assert not torch.equal(other.tokens_BT, whole.tokens_BT)
