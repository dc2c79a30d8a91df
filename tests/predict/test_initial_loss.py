from __future__ import annotations

import math
import statistics

import msgspec
import pytest
import torch
from hypothesis import given

from reference_runs.run import Activation, Architecture, Position, Recipe, Residual
from suite.execute.model.decoder import Decoder, initialise
from suite.miniature import miniature
from suite.predict.initial_loss import FIRST_LOSS_TOLERANCE, first_loss
from tests.strategies import BLOOM, architectures, recipes

MINI = miniature(BLOOM, "cpu", ranks=1)
SEEDS, SAMPLES = 16, 2
SHAPE = msgspec.structs.replace(
    MINI.architecture,
    layers=3,
    hidden=96,
    heads=6,
    kv_heads=6,
    head_dim=16,
    ffn_hidden=384,
    vocabulary=1008,
    padded_vocabulary=1008,
    sequence=64,
)


def measured_losses(architecture: Architecture, recipe: Recipe) -> list[float]:
    """First loss in training mode, one for each seed, on random tokens.

    The mean over all targets but the token that is read, which is what the formula is the expectation of: a random
    draw of targets would add their logits' noise, 30 times the spread between seeds that is left.
    """
    losses = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = Decoder(architecture, recipe, recompute=False)
        initialise(model, recipe)
        tokens_BT = torch.randint(architecture.vocabulary, (SAMPLES, architecture.sequence))
        with torch.no_grad():
            logits_BTV = model(tokens_BT)
        own_BT = logits_BTV.gather(-1, tokens_BT[..., None])[..., 0]
        others_BT = (logits_BTV.sum(-1) - own_BT) / (architecture.padded_vocabulary - 1)
        losses.append(float((logits_BTV.logsumexp(-1) - others_BT).mean()))
    return losses


@pytest.mark.parametrize("without_dropout", [False, True], ids=["dropout", "no dropout"])
@pytest.mark.parametrize("init_std", [BLOOM.recipe.init_std, MINI.recipe.init_std, 0.1])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"tied_embeddings": False},
        {"embedding_norm": False},
        {"position": Position.LEARNED},
        {"position": Position.LEARNED, "embedding_norm": False},
        {"activation": Activation.RELU, "residual": Residual.PARALLEL, "biases": False},
        {"layers": 1, "hidden": 60, "heads": 3, "kv_heads": 3, "head_dim": 20, "ffn_hidden": 100, "sequence": 17},
    ],
    ids=lambda shape: "-".join(shape) or "bloom's block",
)
def test_the_first_loss_equals_that_of_fresh_models(
    shape: dict[str, object], init_std: float, without_dropout: bool
) -> None:
    architecture = msgspec.structs.replace(SHAPE, **shape)
    recipe = msgspec.structs.replace(BLOOM.recipe, init_std=init_std)
    if without_dropout:
        recipe = msgspec.structs.replace(recipe, embedding_dropout=0.0, hidden_dropout=0.0, attention_dropout=0.0)
    losses = measured_losses(architecture, recipe)
    # Noise: the standard error of the mean over seeds, times 4 (Student's t with 15 degrees: 1 in 900).
    # Bias, as a share of what the logits add to ln V, for the means that are taken before a function and not behind it:
    # - the share of a row that dropout keeps varies over tokens by p (1 - p) / h, which lowers r by p / (8 (1 - p) h)
    #   of itself: at most 1 / 8h for any p up to 1/2;
    # - without an embedding LayerNorm, v / (v + epsilon) = g bends at v near epsilon: a row's variance v varies by
    #   2 v^2 / h over tokens, 2.4 v^2 / h behind dropout, which lowers g by at most (1 - g) g^2 2.4 / h < 10 / 27h,
    #   and centring takes 1 / h of v, which lowers g by (1 - g) / h < 1 / h of itself.
    error = statistics.stdev(losses) / math.sqrt(SEEDS)
    added = first_loss(architecture, recipe) - math.log(architecture.padded_vocabulary)
    bias = abs(added) * (1 / 8 + (0 if architecture.embedding_norm else 1 + 10 / 27)) / architecture.hidden
    assert abs(first_loss(architecture, recipe) - statistics.mean(losses)) <= 4 * error + bias


def test_layers_that_add_much_weaken_the_read_tokens_pull_as_predicted() -> None:
    architecture = msgspec.structs.replace(SHAPE, layers=2, ffn_hidden=96)
    recipe = msgspec.structs.replace(
        BLOOM.recipe, init_std=0.07, residual_init_scaled=False, attention_dropout=0.5, embedding_dropout=0.0
    )
    losses = measured_losses(architecture, recipe)
    error = statistics.stdev(losses) / math.sqrt(SEEDS)
    # noise alone: the bias above, 1 / 8h of what the logits add to ln V or 0.0006, is a quarter of one standard error
    assert abs(first_loss(architecture, recipe) - statistics.mean(losses)) <= 4 * error


def test_the_tolerance_of_a_comparison_is_not_what_makes_them_agree() -> None:
    # the miniature on random tokens, whose targets do not repeat the read token: a tenth of the tolerance suffices
    losses = measured_losses(MINI.architecture, MINI.recipe)
    assert statistics.mean(losses) == pytest.approx(
        first_loss(MINI.architecture, MINI.recipe), rel=FIRST_LOSS_TOLERANCE / 10
    )


@given(architectures(), recipes())
def test_only_tied_embeddings_feel_the_layers(architecture: Architecture, recipe: Recipe) -> None:
    untied = msgspec.structs.replace(architecture, tied_embeddings=False)
    expected = math.log(architecture.padded_vocabulary) + recipe.init_std**2 * architecture.hidden / 2
    # the last LayerNorm's epsilon of 1e-5 takes the share 1e-5 / v of s^2 h / 2, with v at least s^2
    assert 0 <= expected - first_loss(untied, recipe) <= 1e-5 * architecture.hidden / 2


def test_the_pull_of_the_read_token_dominates_at_blooms_width() -> None:
    recipe = msgspec.structs.replace(BLOOM.recipe, embedding_dropout=0.0, hidden_dropout=0.0, attention_dropout=0.0)
    shallow = msgspec.structs.replace(BLOOM.architecture, layers=1)
    # behind the embedding LayerNorm A = s^2 / (s^2 + 1e-5) = 0.70; one scaled layer adds B: attention
    # s^2 / 2 h s^2 h c = 0.05 c with c < 1, feed-forward s^2 / 2 4 h E[act^2] = 0.66 E[act^2] with E[act^2] < 0.22;
    # so B / A < 0.28, and r is between 1 / sqrt(1.28) and 1
    pull = recipe.init_std * BLOOM.architecture.hidden
    assert pull / math.sqrt(1.28) < first_loss(shallow, recipe) < pull
