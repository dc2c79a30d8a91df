"""Rungs of the ladder that do something in another way give the same numbers as the suite's own way."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy
import pytest
import torch
from torch import Tensor, nn

from reference_runs.catalog import accumulation
from reference_runs.layout import Recomputation
from suite.execute.data.loader import PrefetchedBatches
from suite.execute.data.token_stream import TokenisedDocuments, TokenStream
from suite.execute.measure.counters import SynchronisationCounter
from suite.execute.model import loss as loss_module
from suite.execute.model.decoder import Decoder, initialise
from suite.execute.model.loss import NOT_LEARNED, ChunkedCrossEntropy, CrossEntropy
from suite.execute.model.torch_operations import TorchOperations
from suite.execute.optim.learning_rate import logged_weight_norm, squared_norm, squared_norm_by_parameter
from suite.job.corpus import tokenised_documents
from suite.job.options import TrainingOptions, Update
from suite.metrics.comparison import Verdict
from suite.metrics.figures import Quantity
from suite.reproduce.plan import Plan
from tests.support.launches import FP32_WITHOUT_DROPOUT, failed_rows, launched, small_plan

SEQUENCE = 16


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenStream, TokenStream]:
    """The same samples from the file of tokens, and from documents of a word to a few hundred."""
    directory = tmp_path_factory.mktemp("documents")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        (directory / "text").mkdir()
        for number, words in enumerate((1, 300, 2, 40, 3, 500)):
            text = " ".join(f"word{number * words * place % 977} <|endoftext|>" for place in range(words))
            (directory / "text" / f"{number}.txt").write_text(text, encoding="utf-8")
        corpus, found = tokenised_documents(directory / "text", vocabulary=300, least_tokens=SEQUENCE)
        documents = TokenisedDocuments(found)
        made, mapped = (
            TokenStream(corpus.tokens_file, tokens=corpus.tokens, sequence=SEQUENCE, seed=3, documents=source)
            for source in (documents, None)
        )
        stored = torch.from_numpy(numpy.fromfile(corpus.tokens_file, dtype="<i4"))
        assert torch.equal(documents[0 : corpus.tokens], stored)
    return made, mapped


def test_tokens_made_from_documents_are_those_of_the_file_wherever_a_sample_begins(texts):
    made, mapped = texts
    for first in range(0, 60, 4):
        ours, theirs = made.micro_batch(first, 4), mapped.micro_batch(first, 4)
        assert torch.equal(ours.tokens_BT, theirs.tokens_BT)
        assert torch.equal(ours.arguments["targets_BT"], theirs.arguments["targets_BT"])


def test_workers_give_the_same_batches_in_the_order_asked_for_and_any_other_is_made_here(texts):
    made, mapped = texts
    firsts = [8, 0, 4, 12]
    ahead = PrefetchedBatches(made, firsts, samples=4, workers=2, pinned=False)
    asked = [firsts[0], 40, *firsts[1:], 8]
    for first in asked:
        assert torch.equal(ahead.micro_batch(first, 4).tokens_BT, mapped.micro_batch(first, 4).tokens_BT)


@pytest.mark.parametrize("chunks", [1, 2, 3, 7])
def test_a_loss_in_chunks_has_the_same_value_and_gradients(chunks):
    """In float64 against fp32: 40 tokens, of which some are not learned, in chunks that do not divide them."""
    generator = torch.Generator().manual_seed(1)
    head = nn.Linear(12, 31, bias=False)
    x = torch.randn(2, 20, 12, generator=generator)
    targets = torch.randint(31, (2, 20), generator=generator)
    targets[0, :5] = NOT_LEARNED
    exact = _loss_and_gradients(CrossEntropy(), head, x.double(), targets, torch.float64)
    loss = ChunkedCrossEntropy(chunks) if chunks > 1 else CrossEntropy()
    ours = _loss_and_gradients(loss, head, x, targets, torch.float32)
    for mine, reference in zip(ours, exact, strict=True):
        # fp32 sums of 40 products and 31 exponentials, each rounded to 2^-24
        assert (mine.double() - reference).abs().max() <= 100 * 2.0**-24 * reference.abs().max()


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # the compiler's own imports
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.rare)], ids=str)
def test_a_compiled_loss_in_chunks_is_the_eager_one_s(dtype, monkeypatch):
    """Nothing falls back to the eager form but where counters ask for it.

    Both round the same products, 700 exponentials are added in another order, and in bf16 a gradient of a logit that
    lies at the border between two numbers becomes the other one: 2^-8 of it.
    """
    called = []
    fused = loss_module._part_compiled
    monkeypatch.setattr(loss_module, "_part_compiled", lambda *args: called.append(1) or fused(*args))
    generator = torch.Generator().manual_seed(1)
    head = nn.Linear(24, 700, bias=False, dtype=dtype)
    x = torch.randn(2, 30, 24, generator=generator).to(dtype)
    targets = torch.randint(700, (2, 30), generator=generator)
    targets[0, 3:9] = NOT_LEARNED
    compiled, eager = ChunkedCrossEntropy(3), ChunkedCrossEntropy(3)
    compiled.compile_parts()

    def results(loss: nn.Module) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        value = loss(head, leaf, targets, 1.0)
        return [value.detach(), *torch.autograd.grad(value, [leaf, head.weight])]

    reference = results(eager)
    with torch.compiler.set_stance("force_eager"):
        assert all(torch.equal(*pair) for pair in zip(results(compiled), reference, strict=True))
    assert not called
    tolerance = 100 * 2.0**-24 if dtype is torch.float32 else 2.0**-8
    for mine, theirs in zip(results(compiled), reference, strict=True):
        assert (mine.double() - theirs.double()).abs().max() <= tolerance * theirs.double().abs().max()
    assert called


def _loss_and_gradients(
    loss: nn.Module, head: nn.Linear, x: Tensor, targets: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    own = nn.Linear(12, 31, bias=False)
    own.load_state_dict(head.state_dict())
    own.to(dtype)
    leaf = x.clone().requires_grad_()
    value = _double_loss(own, leaf, targets) if dtype is torch.float64 else loss(own, leaf, targets, 1.0)
    (3 * value).backward()
    assert leaf.grad is not None
    assert own.weight.grad is not None
    return [value.detach(), leaf.grad, own.weight.grad]


def _double_loss(head: nn.Linear, x: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(head(x).flatten(0, 1), targets.flatten(), ignore_index=NOT_LEARNED)


def _stepped(plan: Plan, script: TrainingOptions) -> list[Tensor]:
    model = Decoder(plan.architecture, plan.recipe, TorchOperations(plan.architecture, script))
    initialise(model, plan.recipe, seed=1)
    tokens = torch.randint(600, (2, 33), generator=torch.Generator().manual_seed(2))
    loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def test_operators_in_place_give_the_same_bits():
    plan = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT)
    plain, in_place = (_stepped(plan, TrainingOptions(rung="", in_place=choice)) for choice in (False, True))
    assert len(plain) == len(in_place) > 10
    assert all(torch.equal(*pair) for pair in zip(plain, in_place, strict=True))


@pytest.mark.rare
@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("ninja")), reason="no C++ compiler and ninja")
def test_the_operator_in_cpp_is_the_softmax_of_scaled_and_masked_scores():
    from suite.execute.model.cpp_softmax import attention_weights

    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 3, 5, 5, generator=generator)
    for heads in (1, 3):
        mask = torch.randn(heads, 5, 5, generator=generator).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
        ours, exact = scores.clone().requires_grad_(), scores.double().requires_grad_()
        weights = attention_weights(ours, mask, 0.3)
        expected = torch.softmax(exact * 0.3 + mask.double(), -1)
        upstream = torch.randn(2, 3, 5, 5, generator=generator)
        weights.backward(upstream)
        expected.backward(upstream.double())
        assert ours.grad is not None
        assert exact.grad is not None
        assert (weights - expected).abs().max() <= 2.0**-20  # a few roundings of numbers up to 1
        assert (ours.grad - exact.grad).abs().max() <= 2.0**-20
    assert torch.library.opcheck(torch.ops.ladder.attention_weights.default, (scores, mask, 0.3))


def test_a_norm_parameter_by_parameter_is_the_norm_and_waits_for_each():
    gradients = [torch.randn(7, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    device = torch.device("cpu")
    with SynchronisationCounter(device) as waits:
        naive = squared_norm_by_parameter(gradients, device=device)
    assert waits.count == 5
    with waits:
        own = squared_norm(gradients, device=device)
    assert waits.count == 0
    assert naive.item() == pytest.approx(own.item(), rel=1e-5)
    parameters = [nn.Parameter(gradient) for gradient in gradients]
    with waits:
        logged = logged_weight_norm(parameters)
    assert logged == pytest.approx(naive.item() ** 0.5, rel=1e-5)
    assert waits.count == 6


NAIVE = TrainingOptions(rung="naive", synchronises=True, keeps_gradients=True, update=Update.FOREACH)
FRUGAL = TrainingOptions(rung="frugal", in_place=True, update=Update.ADAFACTOR, loss_chunks=3)


@pytest.mark.ranks
@pytest.mark.usefixtures("warm_ranks")
@pytest.mark.parametrize("script", [NAIVE, FRUGAL], ids=lambda script: script.rung)
def test_a_launch_of_a_script_has_the_bytes_that_are_predicted_of_it(script, tmp_path):
    """State to the byte, activations and peak to 2 %; and its record says what the script was."""
    layout = {"zero_stage": 0, "recomputation": Recomputation.NONE}
    plan = small_plan(ranks=1, recipe=FP32_WITHOUT_DROPOUT, layout=layout)
    result = launched(msgspec.structs.replace(plan, training_options=script), tmp_path)
    assert failed_rows(result) == set()
    (peak,) = [row for row in result.rows if row.quantity == Quantity.PEAK_BYTES and row.rank is None]
    assert peak.verdict is Verdict.PASS
    assert f'"rung": "{script.rung}"' in Path(result.record).read_text(encoding="utf-8")
    (finished,) = result.finished
    assert finished.resident_bytes is not None
    assert finished.resident_bytes > finished.peak_bytes
    # a number of every weight, gradient and micro-batch, the root of the weights' sum, and every step's one
    tensors = len(list(Decoder(plan.architecture, plan.recipe, TorchOperations(plan.architecture)).parameters()))
    if script is NAIVE:
        assert finished.synchronisations == 2 * tensors + accumulation(plan.recipe, plan.layout) + 2
