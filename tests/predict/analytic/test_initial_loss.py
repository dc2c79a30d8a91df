from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from reference_runs.architecture import QueryKeyNorm
from reference_runs.miniature import miniature
from reference_runs.run import Activation, Architecture, Norm, Position, Recipe, Residual
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.position import alibi_slopes
from suite.predict.analytic.initial_loss import (
    FIRST_LOSS_TOLERANCE,
    activation_second_moment,
    attention_variances,
    first_loss,
)
from tests.support.strategies import BLOOM, architectures, recipes

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

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    Activation.GELU: gelu,
    Activation.GELU_TANH: lambda x: gelu(x, approximate="tanh"),
    Activation.FAST_GELU: lambda x: x / (1 + torch.exp(-1.702 * x.abs())) * torch.exp(0.851 * (x - x.abs())),
    Activation.RELU: relu,
    Activation.RELU_SQUARED: lambda x: relu(x).square(),
    Activation.GEGLU: gelu,
    Activation.GEGLU_TANH: lambda x: gelu(x, approximate="tanh"),
    Activation.SWIGLU: silu,
}
nodes, weights = np.polynomial.hermite_e.hermegauss(7)
NODES_Z, WEIGHTS_Z = torch.tensor(nodes), torch.tensor(weights / math.sqrt(2 * math.pi))
LATENT: dict[str, object] = {
    "position": Position.ROTARY,
    "rotary_dim": 8,
    "rotary_base": 10000.0,
    "head_dim": 24,
    "query_rank": 40,
    "key_value_rank": 32,
    "value_head_dim": 16,
    "biases": False,
    "norm": Norm.PRE_RMS_NORM,
    "embedding_norm": False,
}


def exact_first_loss(architecture: Architecture, recipe: Recipe) -> float:
    """The formula of `first_loss` with every position, head and layer in it.

    Shapes: N positions attended to, K heads, Z nodes of the normal distribution.
    """
    h, s, epsilon = architecture.hidden, recipe.init_std, architecture.norm_epsilon
    gated = architecture.activation.gated
    slopes_K = torch.tensor(alibi_slopes(architecture.heads) if architecture.position is Position.ALIBI else [0.0])
    weights_NK = torch.exp(-slopes_K.double() * torch.arange(architecture.sequence)[:, None])
    equal_scores_NK = (weights_NK**2).cumsum(0) / weights_NK.cumsum(0) ** 2

    def left(variance_N: Tensor) -> Tensor:
        return variance_N / (variance_N + epsilon)

    def second_moment(variance_N: Tensor) -> Tensor:
        act_NZ = ACTIVATIONS[architecture.activation](variance_N.sqrt()[:, None] * NODES_Z)
        moment_N = act_NZ**2 @ WEIGHTS_Z
        return moment_N * variance_N if gated else moment_N

    token_share = 0.5 if architecture.position is Position.LEARNED else 1.0
    embedding_N = torch.full((architecture.sequence,), s * s / token_share, dtype=torch.float64)
    if architecture.embedding_norm:
        embedding_N = left(embedding_N)
    embedding_N = embedding_N / (1 - recipe.embedding_dropout)
    variance_N = embedding_N
    out = s * s / (2 * architecture.layers) if recipe.residual_init_scaled else s * s

    def layer(variance_N: Tensor, equal_scores_NK: Tensor, queries: float | None) -> Tensor:
        spread_N = s * s * h * left(variance_N)
        shrink_NK = torch.exp(-spread_N[:, None] * (spread_N[:, None] if queries is None else s * s * h * queries))
        concentration_N = (equal_scores_NK / (shrink_NK + equal_scores_NK * (1 - shrink_NK))).mean(1)
        attention_N = out * h * spread_N * concentration_N
        attention_N = attention_N / (1 - recipe.attention_dropout) / (1 - recipe.hidden_dropout)
        if architecture.residual is Residual.SEQUENTIAL:
            spread_N = s * s * h * left(variance_N + attention_N)
        fed_N = out * architecture.ffn_hidden * second_moment(spread_N) / (1 - recipe.hidden_dropout)
        return variance_N + attention_N + fed_N

    for _ in range(architecture.layers - architecture.top_query_layer):
        variance_N = layer(variance_N, equal_scores_NK, None)
    behind_N = torch.zeros(architecture.sequence, dtype=torch.float64)
    if architecture.top_query_layer:
        equal_NK = (1 / torch.arange(1, architecture.sequence + 1, dtype=torch.float64))[:, None]
        behind_N = layer(torch.ones(architecture.sequence, dtype=torch.float64), equal_NK, s * s) - 1
    spread_N = s * s * h * (left(variance_N) + behind_N)
    if not architecture.tied_embeddings:
        return float((math.log(architecture.padded_vocabulary) + spread_N / 2).mean())
    others_N = math.log(architecture.padded_vocabulary - 1) + spread_N / 2
    cosine_squared_N = token_share * (1 - recipe.embedding_dropout) * embedding_N / variance_N
    length = h - (1 / 4 if architecture.norm is Norm.PRE_RMS_NORM else 3 / 4)
    mean_N = s * length * (cosine_squared_N * left(variance_N)).sqrt()
    deviation_N = (spread_N - s * s * h * left(variance_N) * cosine_squared_N / 2).sqrt()
    own_NZ = mean_N[:, None] + deviation_N[:, None] * NODES_Z
    return float((torch.logaddexp(own_NZ, others_N[:, None]) @ WEIGHTS_Z).mean())


GPT2 = msgspec.structs.replace(
    BLOOM.architecture,
    layers=12,
    hidden=768,
    heads=12,
    kv_heads=12,
    head_dim=64,
    ffn_hidden=3072,
    vocabulary=50257,
    padded_vocabulary=50304,
    sequence=1024,
    position=Position.LEARNED,
    embedding_norm=False,
)
NORMS = [Norm.PRE_LAYER_NORM, Norm.PRE_RMS_NORM]
SAMPLING = 1e-4  # what the sampled sums may cost, as a share of the loss


@st.composite
def large_architectures(draw: st.DrawFn) -> Architecture:
    """Shapes of published size, with variances of the attention's scores from far below to far above 1."""
    heads, head_dim = draw(st.integers(1, 128)), draw(st.sampled_from([32, 64, 128]))
    return msgspec.structs.replace(
        BLOOM.architecture,
        layers=draw(st.integers(1, 128)),
        hidden=heads * head_dim,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn_hidden=heads * head_dim * draw(st.integers(1, 4)),
        padded_vocabulary=draw(st.sampled_from([256, 50304, 250880])),
        sequence=draw(st.integers(1, 300) | st.sampled_from([512, 1024, 2048])),
        position=draw(st.sampled_from(Position)),
        norm=draw(st.sampled_from(NORMS)),
        norm_epsilon=draw(st.sampled_from([1e-5, 1e-6])),
        embedding_norm=draw(st.booleans()),
        activation=draw(st.sampled_from(Activation)),
        residual=draw(st.sampled_from(Residual)),
        top_query_layer=draw(st.booleans()),
    )


@given(large_architectures(), recipes(), st.floats(0.1, 1) | st.none())
def test_few_positions_heads_and_layers_stand_for_all(
    architecture: Architecture, recipe: Recipe, spread: float | None
) -> None:
    if spread is not None:  # of queries and keys in published runs, where the concentration of attention matters most
        recipe = msgspec.structs.replace(recipe, init_std=math.sqrt(spread / architecture.hidden))
    assert first_loss(architecture, recipe) == pytest.approx(exact_first_loss(architecture, recipe), rel=SAMPLING)


def test_the_hardest_shapes_to_sample_are_met_as_well() -> None:
    plain = {"embedding_norm": False}
    rotary = {"position": Position.ROTARY}
    geglu, swiglu = {"activation": Activation.GEGLU}, {"activation": Activation.SWIGLU}
    for heads, head_dim, shape, init_std, residual_init_scaled in (
        (80, 128, {"sequence": 40, **rotary}, 0.0057, False),  # short: the loss falls fastest over the first positions
        (20, 128, {"sequence": 64, **geglu}, 0.0114, False),  # two short series of slopes
        # a variance that starts near epsilon: attention's share, many small layers, one large one
        (128, 128, {"layers": 1, **swiglu, **plain}, 0.003, True),
        (20, 128, {"layers": 44, "sequence": 256, **rotary, **geglu, **plain}, 0.0039, True),
        (64, 64, {"layers": 1, **rotary, **swiglu, **plain}, 0.0099, True),
    ):
        size = {"heads": heads, "head_dim": head_dim, "hidden": heads * head_dim, "ffn_hidden": heads * head_dim}
        architecture = msgspec.structs.replace(
            BLOOM.architecture, padded_vocabulary=256, residual=Residual.PARALLEL, **size, **shape
        )
        recipe = msgspec.structs.replace(
            BLOOM.recipe, init_std=init_std, residual_init_scaled=residual_init_scaled, hidden_dropout=0.5
        )
        exact = exact_first_loss(architecture, recipe)
        assert first_loss(architecture, recipe) == pytest.approx(exact, rel=SAMPLING), (heads, shape)


@given(architectures(), recipes(), st.sampled_from(Activation), st.sampled_from(Position), st.sampled_from(NORMS))
def test_small_shapes_are_not_sampled_away(
    architecture: Architecture, recipe: Recipe, activation: Activation, position: Position, norm: Norm
) -> None:
    architecture = msgspec.structs.replace(architecture, activation=activation, position=position, norm=norm)
    assert first_loss(architecture, recipe) == pytest.approx(exact_first_loss(architecture, recipe), rel=SAMPLING)


def test_sampling_costs_recorded_shapes_a_tenth_of_that() -> None:
    errors = {}
    for shape in (BLOOM.architecture, GPT2):
        for tied in (True, False):
            for init_std in (BLOOM.recipe.init_std, 0.01, 0.02, 0.05, 0.2):
                architecture = msgspec.structs.replace(shape, tied_embeddings=tied)
                recipe = msgspec.structs.replace(BLOOM.recipe, init_std=init_std)
                exact = exact_first_loss(architecture, recipe)
                errors[shape.layers, tied, init_std] = abs(first_loss(architecture, recipe) / exact - 1)
    assert {case: error for case, error in errors.items() if error > SAMPLING / 10} == {}


def test_an_activations_second_moment_equals_the_integral() -> None:
    z = torch.linspace(-9, 9, 3601, dtype=torch.float64)
    density = torch.softmax(-z * z / 2, 0)
    for activation in Activation:
        for variance in (0.01, 0.1):
            out = ACTIVATIONS[activation](math.sqrt(variance) * z)
            integral = float(out**2 @ density) * (variance if activation.gated else 1)
            # 7 nodes are exact up to x^13. Of the steepest square, x^2 (1 + tanh(0.851 x)^2) / 2, the next term is
            # 0.0034 x^14, whose mean they miss by 7! 0.0034 variance^7: 70 variance^6 of the moment, which is at
            # least variance / 4.
            error = 70 * variance**6
            found = activation_second_moment(activation, variance)
            assert found == pytest.approx(integral, rel=error, abs=0), (activation, variance)


@pytest.mark.parametrize("norm", [Norm.DEEP_NORM, Norm.OUTPUT_RMS_NORM])
def test_post_norm_models_are_refused(norm: Norm) -> None:
    architecture = msgspec.structs.replace(BLOOM.architecture, norm=norm)
    with pytest.raises(ValueError, match="post-norm models is not described; allowed: pre-layer-norm, pre-rms-norm"):
        first_loss(architecture, BLOOM.recipe)


def measured_losses(architecture: Architecture, recipe: Recipe) -> list[float]:
    """First loss in training mode, one for each seed, on random tokens.

    The mean over all targets but the token that is read, which is what the formula is the expectation of: a random
    draw of targets would add their logits' noise, 30 times the spread between seeds that is left.
    """
    losses = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = Decoder(architecture, recipe)
        initialise(model, recipe, seed=seed)
        tokens_BT = torch.randint(architecture.vocabulary, (SAMPLES, architecture.sequence))
        with torch.no_grad():
            logits_BTV = model(tokens_BT)
        own_BT = logits_BTV.gather(-1, tokens_BT[..., None])[..., 0]
        others_BT = (logits_BTV.sum(-1) - own_BT) / (architecture.padded_vocabulary - 1)
        losses.append(float((logits_BTV.logsumexp(-1) - others_BT).mean()))
    return losses


@pytest.mark.covering(1)
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
        {"activation": Activation.FAST_GELU},
        {"activation": Activation.GEGLU},
        {"activation": Activation.SWIGLU, "norm": Norm.PRE_RMS_NORM, "embedding_norm": False},
        {"layers": 1, "hidden": 60, "heads": 3, "kv_heads": 3, "head_dim": 20, "ffn_hidden": 100, "sequence": 17},
        {"position": Position.LEARNED, "embedding_norm": False, "top_query_layer": True},
        {"position": Position.LEARNED, "layers": 1, "tied_embeddings": False, "top_query_layer": True},
        LATENT,
        LATENT | {"query_rank": None, "value_head_dim": 40},
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


@pytest.mark.parametrize(("query_rank", "rotary_dim"), [(None, 0), (None, 8), (24, 8), (24, 16)])
def test_scores_of_latent_attention_have_the_mean_variance_of_their_dimensions(
    query_rank: int | None, rotary_dim: int
) -> None:
    """The rotated ones of a head's 16 dimensions come from hidden states, the others from 12 compressed columns."""
    shape = msgspec.structs.replace(
        BLOOM.architecture, head_dim=16, query_rank=query_rank, key_value_rank=12, rotary_dim=rotary_dim or None
    )
    spread, deviation = 0.7, 0.05
    recipe = msgspec.structs.replace(BLOOM.recipe, init_std=deviation)
    normed = spread / (spread + shape.norm_epsilon)
    expanded = 12 * deviation**2 * normed
    queries = spread if query_rank is None else query_rank * deviation**2 * normed
    keys = [spread] * rotary_dim + [expanded] * (16 - rotary_dim)
    found = attention_variances(shape, recipe, spread)
    assert found == pytest.approx((queries * statistics.fmean(keys), expanded))


def test_scores_are_the_product_of_both_variances_or_one_where_both_are_normed() -> None:
    plain = msgspec.structs.replace(BLOOM.architecture, query_key_norm=QueryKeyNorm.NONE)
    normed = msgspec.structs.replace(plain, query_key_norm=next(e for e in QueryKeyNorm if e is not QueryKeyNorm.NONE))
    assert attention_variances(plain, BLOOM.recipe, 0.5) == (0.25, 0.5)
    assert attention_variances(normed, BLOOM.recipe, 0.5) == (1.0, 0.5)


def test_a_first_token_sees_itself_however_long_documents_are() -> None:
    alone = msgspec.structs.replace(GPT2, sequence=1)
    recipe = msgspec.structs.replace(BLOOM.recipe, init_std=0.02)
    in_documents = msgspec.structs.replace(alone, mean_document=4)
    assert first_loss(in_documents, recipe) == pytest.approx(first_loss(alone, recipe), rel=1e-12)
