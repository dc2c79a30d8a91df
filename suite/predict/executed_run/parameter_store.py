"""Expected state, bytes and messages of every rank of workers at a parameter store."""

from __future__ import annotations

import msgspec

from reference_runs.run import Workload
from suite.job.options import StepOptions
from suite.job.training_job import layout_in_store
from suite.metrics.figures import Figure, Quantity, with_maximum_over_ranks
from suite.predict.analytic.memory import BYTES_PER_PARAMETER, WEIGHT_ELEMENT_BYTES
from suite.predict.analytic.process_groups import Traffic, sent_bytes
from suite.predict.executed_run.counts import SENT_REASON, SENT_TOLERANCE, job_figures, rank_figures
from suite.predict.simulation.state import optimizer_groups

_OF_AVERAGING = (Quantity.PAYLOAD_BYTES, Quantity.MESSAGES, Quantity.SENT_BYTES)


def stored_workload(workload: Workload) -> Workload:
    """The workload in the layout whose buffers and shards it has at a parameter store."""
    return workload._replace(layout=layout_in_store(workload.layout))


def store_traffic(workload: Workload) -> Traffic:
    """Messages of one rank in a step: as a worker its gradient, as a shard the weights that workers read.

    With n workers, and N elements in a weight group, in n shards of ceil(N / n); g bytes a gradient, w a weight:
        (n - 1) g ceil(N / n)    of each weight group, to the other shards, a message each
        (n - 1) w ceil(N / n)    of each weight group, to the other workers, a message each

    Left out: what the ranks agree on, per gradient an entry of some bytes in PyTorch's distributed store, which each
    rank reads, and per update an all-reduce of the squared gradient norm, 8 bytes.
    Differs from an all-reduce of the gradient, 2 (n - 1) g N / n in a ring, where weights are shorter than gradients.
    """
    groups = optimizer_groups(stored_workload(workload), stage=0)
    precision, others = workload.recipe.precision, workload.layout.data_parallel - 1
    element = int(BYTES_PER_PARAMETER[precision].gradients) + WEIGHT_ELEMENT_BYTES[precision]
    payload = others * element * sum(group.share for group in groups)
    return Traffic("dp", "send", payload, 2 * others * len(groups))


def store_figures(workload: Workload, options: StepOptions) -> list[Figure]:
    """The figures of the job and of every rank, without those of memory in passing.

    State is that of ZeRO-1 with scattered gradients; a shard of the store has its weights too, which its worker and all
    others have copies of.
    """
    stored = stored_workload(workload)
    ranks = workload.layout.ranks
    kept = [f for f in rank_figures(stored, options) if f.quantity not in _OF_AVERAGING]
    weight_bytes = next(f.value for f in kept if f.quantity is Quantity.WEIGHT_BYTES)
    kept = [
        msgspec.structs.replace(figure, value=figure.value + int(weight_bytes) // ranks)
        if figure.quantity is Quantity.OPTIMIZER_BYTES
        else figure
        for figure in kept
    ]
    return job_figures(workload) + kept + with_maximum_over_ranks([f for r in range(ranks) for f in _sent(workload, r)])


def _sent(workload: Workload, rank: int) -> list[Figure]:
    traffic = store_traffic(workload)
    sent = sent_bytes(traffic, workload.layout)
    values = {Quantity.PAYLOAD_BYTES: traffic.payload_bytes, Quantity.MESSAGES: traffic.messages}
    return [
        *(Figure(q, value, axis=traffic.axis, operation=traffic.operation, rank=rank) for q, value in values.items()),
        Figure(Quantity.SENT_BYTES, sent, rank=rank, tolerance=SENT_TOLERANCE, why=SENT_REASON),
    ]
