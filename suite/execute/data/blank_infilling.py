"""Blank infilling (GLM): samples whose hidden spans the model has to generate.

A window of a text has two parts. The visible part comes first, with special tokens in place of hidden spans; its tokens
attend to all of it. After it each span is generated, from [sop] on: its tokens attend to the visible part and to what
was generated before them. Windows that share a sample do not attend to each other.

The special tokens (`BLANK_TOKENS`) take the first rows after the vocabulary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from reference_runs.run import BLANK_TOKENS, Architecture, Recipe
from suite.execute.model.loss import NOT_LEARNED


class Sample(NamedTuple):
    """The tokens of a sample, and for each its target, its position, and the range of indices that attend to it.

    Args:
        targets: NOT_LEARNED where the next token is not generated.
    """

    tokens: list[int]
    targets: list[int]
    positions: list[int]
    seen_from: list[int]
    seen_until: list[int]

    def add(
        self, visible: Sequence[int], generated: Sequence[tuple[int, list[int]]], *, sop: int, counts: bool
    ) -> None:
        """Append a window.

        Args:
            generated: index of the token in the visible part that stands for a span, and the span.
            counts: whether positions increase within a span; else all of it has the position of that token.
        """
        start = len(self.tokens)
        end = start + len(visible) + sum(len(span) for _, span in generated)
        self.tokens.extend(visible)
        self.targets.extend([NOT_LEARNED] * len(visible))
        self.positions.extend(range(len(visible)))
        self.seen_from.extend([start] * len(visible))
        for index, span in generated:
            self.seen_from.extend(range(len(self.tokens), len(self.tokens) + len(span)))
            self.tokens.extend([sop, *span[:-1]])
            self.targets.extend(span)
            self.positions.extend(range(index + 1, index + 1 + len(span)) if counts else [index] * len(span))
        self.seen_until.extend([end] * (end - start))


class BlankInfilling:
    """Makes samples of `sequence` tokens in the recorded mix, each from its text and its number alone.

    With the shares g = gmask_share, i = instruction_share, and p packed samples:
        i              p windows: a question of uniform length, [gMASK], and the answer, which ends with [eop]; the
                       beginning of a text stands for the question
        (1 - i) g      one window: a prefix of uniform length, [gMASK] and the rest, without [eop]
        (1 - i)(1 - g) p windows: spans of the text, `mask_share` of it to within one token, each with a [MASK] in its
                       place and ending with [eop], in random order
    Spans have Poisson lengths of at least 1 (the last one is cut to what is left of the share), at uniform places with
    a token or more between two.

    Sources: Zeng et al. 2022, arXiv 2210.02414, sections 2.1-2.3; Du et al. 2022, arXiv 2103.10360, section 2.1.
    Positions are those of GLM-130B's released code (general knowledge): a span has that of its [MASK], the tokens after
    [gMASK] count on.
    """

    def __init__(self, architecture: Architecture, recipe: Recipe, *, seed: int) -> None:
        assert recipe.gmask_share is not None
        assert recipe.mask_share is not None
        assert recipe.mean_span is not None
        assert recipe.packed_samples is not None
        assert recipe.instruction_share is not None
        first = architecture.vocabulary
        self.mask, self.gmask, self.sop, self.eop = range(first, first + len(BLANK_TOKENS))
        self._sequence = architecture.sequence
        self._gmask_share, self._instruction_share = recipe.gmask_share, recipe.instruction_share
        self._mask_share, self._mean_span = recipe.mask_share, recipe.mean_span
        self._packed = recipe.packed_samples
        self._seed = seed

    def sample(self, text: Sequence[int], number: int) -> Sample:
        """The sample with this number, of the first tokens of `text`, at least `sequence`."""
        rng = random.Random(f"{self._seed} {number}")
        sample = Sample([], [], [], [], [])
        if rng.random() < self._instruction_share:
            for window in self._windows():
                self._add_suffix(sample, text[len(sample.tokens) :], window, rng, end=[self.eop])
        elif rng.random() < self._gmask_share:
            self._add_suffix(sample, text, self._sequence, rng, end=[])
        else:
            for window in self._windows():
                self._add_spans(sample, text[len(sample.tokens) :], window, rng)
        return sample

    def _windows(self) -> list[int]:
        """Tokens of each packed window; the first ones have one more where they do not divide the sequence."""
        return [self._sequence // self._packed + (n < self._sequence % self._packed) for n in range(self._packed)]

    def _add_suffix(self, sample: Sample, text: Sequence[int], window: int, rng: random.Random, end: list[int]) -> None:
        given = rng.randint(len(end), window - 2 - len(end))  # question and answer have at least one token
        rest = text[given : window - 1 - len(end)]
        sample.add([*text[:given], self.gmask], [(given, [*rest, *end])], sop=self.sop, counts=True)

    def _add_spans(self, sample: Sample, text: Sequence[int], window: int, rng: random.Random) -> None:
        lengths = self._span_lengths(window, rng)
        hidden, taken = sum(lengths), window - 2 * len(lengths)
        # each span takes another of the gaps before, between and after the kept tokens
        gaps = sorted(rng.sample(range(taken - hidden + 1), len(lengths)))
        visible: list[int] = []
        spans: list[tuple[int, list[int]]] = []
        at = kept = 0
        for gap, length in zip(gaps, lengths, strict=True):
            visible.extend(text[at : at + gap - kept])
            at, kept = at + gap - kept, gap
            spans.append((len(visible), [*text[at : at + length], self.eop]))
            visible.append(self.mask)
            at += length
        visible.extend(text[at:taken])
        rng.shuffle(spans)
        sample.add(visible, spans, sop=self.sop, counts=False)

    def _span_lengths(self, window: int, rng: random.Random) -> list[int]:
        """Lengths of the spans in a window. Each needs a [MASK] and a [sop]: k spans leave window - 2 k for text."""
        lengths: list[int] = []
        while True:
            room = math.ceil(self._mask_share * (window - 2 * (len(lengths) + 1))) - sum(lengths)
            if room <= 0:
                return lengths
            lengths.append(min(room, self._poisson(rng)))
            if lengths[-1] == room:
                return lengths

    def _poisson(self, rng: random.Random) -> int:
        """A length of 1 or more: arrivals of rate 1 within the mean, until there are any."""
        while True:
            length, time = 0, rng.expovariate(1.0)
            while time < self._mean_span:
                length, time = length + 1, time + rng.expovariate(1.0)
            if length:
                return length
