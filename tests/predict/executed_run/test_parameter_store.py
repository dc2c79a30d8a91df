from __future__ import annotations

import msgspec
import pytest
import torch

from reference_runs.run import Precision, Workload
from suite.execute.model.decoder import Decoder
from suite.execute.precision import GRADIENT_DTYPES, store_weights
from suite.job.options import DEFAULT_STEP
from suite.metrics.figures import Quantity
from suite.predict.executed_run.counts import prediction
from suite.predict.executed_run.parameter_store import store_figures, store_traffic
from tests.support.launches import small_plan


def workload(ranks: int, precision: Precision) -> Workload:
    recipe = {"precision": precision, "global_batch": 4 * ranks}
    return small_plan(
        ranks=ranks,
        recipe=recipe,
        layout={"zero_stage": 0, "data_parallel": ranks, "tensor_parallel": 1, "pipeline_stages": 1},
    ).workload


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_what_a_rank_sends_equals_the_shards_of_buffers_that_are_really_made(ranks: int, precision: Precision) -> None:
    of = workload(ranks, precision)
    groups = store_weights([Decoder(of.architecture, of.recipe)], of.recipe, shards=ranks, device=torch.device("cpu"))
    pushed = [group.flat.chunk(ranks)[rank].numel() for rank in range(1, ranks) for group in groups]
    pulled = [group.flat.chunk(ranks)[0] for _ in range(1, ranks) for group in groups]
    gradient_bytes = GRADIENT_DTYPES[groups[0].flat.dtype].itemsize
    sent = store_traffic(of)
    assert (sent.axis, sent.operation) == ("dp", "send")
    assert sent.messages == len(pushed) + len(pulled)
    assert sent.payload_bytes == gradient_bytes * sum(pushed) + sum(part.nbytes for part in pulled)


def test_workers_compute_as_averaged_ranks_do_and_keep_a_shard_of_the_weights_more() -> None:
    of = workload(2, Precision.BF16)
    ours = {figure.key: figure for figure in store_figures(of, DEFAULT_STEP)}
    sharded = msgspec.structs.replace(of.layout, zero_stage=1, reduce_scatter=True)
    theirs = {figure.key: figure for figure in prediction(of._replace(layout=sharded), DEFAULT_STEP)}
    for key in ours:
        quantity, axis = key[0], key[1]
        if quantity == Quantity.OPTIMIZER_BYTES:
            weights = theirs[Quantity.WEIGHT_BYTES.value, *key[1:]].value
            assert ours[key].value == theirs[key].value + weights / 2
        elif axis is None and quantity != Quantity.SENT_BYTES:
            assert ours[key].value == theirs[key].value
