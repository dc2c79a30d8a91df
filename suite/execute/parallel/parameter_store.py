"""A parameter store that is sharded over the data-parallel ranks, each of which is a worker and serves a shard.

A worker pushes its gradient, each rank's shard of it to that rank, and pulls new weights when it may begin its next
step. A thread of every rank serves its shard. All follow one order, in which workers announce their gradients: a list
in PyTorch's distributed store, which torchrun has anyway. So they make the same updates of the same gradients, and a
worker never reads shards of different updates. Gradients and weights go from rank to rank, by send and receive over
gloo or NCCL. What PyTorch has besides, its RPC framework, is in maintenance mode and has no NCCL.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch's public name, from its C++

from reference_runs.catalog import global_batch_at
from reference_runs.run import Recipe
from suite.execute.measure.counters import CollectiveCounter
from suite.execute.optim.learning_rate import gradient_factor, learning_rate, squared_norm
from suite.execute.optim.master_weights import master_weights
from suite.execute.parallel.mesh import DATA
from suite.execute.parallel.scattered_gradients import ScatteredGradients
from suite.job.events import CountedCollective
from suite.job.synchronisation import Contribution, WorkerClocks
from suite.job.training_job import Job

JOIN_SECONDS = 1.0


class OrderOfArrival:
    """The order in which workers announced gradients, in the launch's TCPStore.

    Each thread needs one of its own: a client of the store waits for one answer at a time.
    """

    def __init__(self, timeout: timedelta) -> None:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = TCPStore(host, port, is_master=False, timeout=timeout)

    def announce(self, worker: int) -> None:
        number = self._store.add("gradients announced", 1) - 1
        self._store.set(self._key(number), str(worker))

    def worker(self, number: int) -> int:
        """The worker of gradient `number`, once it is announced."""
        return int(self._store.get(self._key(number)))

    def forget(self, number: int) -> None:
        """Nobody asks for gradient `number` any more."""
        self._store.delete_key(self._key(number))

    def _key(self, number: int) -> str:
        return f"gradient {number}"


def _batches(recipe: Recipe, steps: int) -> list[int]:
    """Samples of each step of all workers together."""
    batches: list[int] = []
    seen = 0
    for _ in range(steps):
        batches.append(global_batch_at(recipe, seen))
        seen += batches[-1]
    return batches


class ParameterStore:
    """This rank's shard of the store, and its worker's way to all shards.

    An update takes k gradients of n workers. It is one step of the recipe's optimizer by their mean, clipped by the
    mean's norm, with k / n of the learning rate: n gradients alone move the weights about as far as their mean does.
    With k = n it is that of a step over the whole batch.

    Attributes:
        arrivals: the workers of all gradients so far, in the order of coming.
    """

    def __init__(self, job: Job, gradients: ScatteredGradients, device: torch.device) -> None:
        assert job.synchronisation is not None
        self.arrivals: list[int] = []
        self._job, self._gradients, self._device = job, gradients, device
        self._rank, self._workers = dist.get_rank(), dist.get_world_size()
        weights = [(g.weight_decay, [self._part(g.flat, self._rank).clone()]) for g in gradients.groups]
        self._masters = master_weights(weights, job.recipe)
        self._clocks = WorkerClocks(self._workers, job.synchronisation.bound)
        self._groups = [dist.new_group() for _ in range(self._workers)]  # of the messages of each shard
        self._scalars = dist.new_group(backend="gloo")
        self._timeout = timedelta(seconds=job.collective_timeout_seconds)
        self._order = OrderOfArrival(self._timeout)
        self._own: deque[list[Tensor]] = deque()  # this worker's gradients of this shard
        self._reads: queue.SimpleQueue[float | BaseException] = queue.SimpleQueue()
        self._batches = _batches(job.recipe, job.steps)
        self._samples = 0
        self._error: BaseException | None = None
        self._counter = CollectiveCounter(self.axis_of_group)
        self._sent: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._serve, name="parameter store", daemon=True)
        self._thread.start()

    @property
    def axis_of_group(self) -> dict[str, str]:
        """Process group name -> axis, of the groups that gradients and weights go by."""
        return {group.group_name: DATA for group in self._groups}

    @property
    def state_tensors(self) -> list[Tensor]:
        """Tensors that this rank's shard keeps: weights, and the state of `MasterWeights`."""
        return [*self._masters.weights, *self._masters.state_tensors]

    def push(self) -> None:
        """Announce the gradient of this worker's step, and send every rank its shard of it; then clear it."""
        own = [self._part(flat, self._rank).clone() for flat in self._gradients.flat]
        self._wait_for_device()
        self._own.append(own)
        self._order.announce(self._rank)
        self._wait_for(
            dist.isend(self._part(flat, rank), dst=rank, group=self._groups[rank])
            for rank in self._others
            for flat in self._gradients.flat
        )
        self._gradients.clear()

    def pull(self) -> float:
        """Wait until this worker may begin its next step, and read all weights.

        Returns the seconds until the gradient was announced for which it had to wait, 0 where that was its own.
        """
        since = time.perf_counter()
        allowed = self._reads.get()
        if isinstance(allowed, BaseException):
            raise allowed
        self._wait_for(
            dist.irecv(self._part(group.flat, rank), src=rank, group=self._groups[rank])
            for rank in self._others
            for group in self._gradients.groups
        )
        return max(0.0, allowed - since)

    def finish(self, progress: Callable[[], None]) -> None:
        """Serve until every worker's gradients have come; call `progress` as long as they do."""
        seen = -1
        while self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)
            if len(self.arrivals) > seen:
                seen = len(self.arrivals)
                progress()
        if self._error is not None:
            raise self._error

    def with_sent_weights(self, collectives: list[CountedCollective]) -> list[CountedCollective]:
        """Collectives of this rank's worker in the counted step, with the weights that its shard sent after it."""
        sent = CountedCollective(DATA, "send", self._sent["bytes"], self._sent["messages"])
        return [
            CountedCollective(
                each.axis, each.operation, each.payload_bytes + sent.payload_bytes, each.messages + sent.messages
            )
            if (each.axis, each.operation) == (sent.axis, sent.operation)
            else each
            for each in collectives
        ]

    def _serve(self) -> None:
        try:
            torch.set_num_threads(self._job.threads)  # of this thread
            with torch.no_grad(), self._own_stream():
                self._follow(OrderOfArrival(self._timeout))
        except BaseException as error:  # whatever it is, the rank ends by it
            self._error = error
            self._reads.put(error)

    def _follow(self, order: OrderOfArrival) -> None:
        """Take every gradient in its order, update, and send weights to the workers that may read."""
        gradients: dict[Contribution, list[Tensor]] = {}
        forgotten = 0
        for number in range(self._workers * self._job.steps):
            worker = order.worker(number)
            announced = time.perf_counter()
            gradients[Contribution(self._clocks.clocks[worker], worker)] = self._received(worker)
            update = self._clocks.push(worker)
            self.arrivals.append(worker)
            if update is None:
                continue
            self._samples += sum(self._batches[step] for step, _ in update.members) // self._workers
            self._update([gradients.pop(member) for member in update.members])
            allowed = -math.inf if worker == self._rank else announced  # this worker waited for another, or for none
            self._send_weights([r for r in update.readers if self._clocks.clocks[r] < self._job.steps], allowed)
            while self._rank == 0 and forgotten <= number:  # every shard has read so far: the update needed all
                order.forget(forgotten)
                forgotten += 1

    def _received(self, worker: int) -> list[Tensor]:
        """A worker's gradient of this shard."""
        if worker == self._rank:
            return self._own.popleft()
        parts = [torch.empty_like(self._part(flat, self._rank)) for flat in self._gradients.flat]
        for part in parts:
            dist.recv(part, src=worker, group=self._groups[self._rank])
        return parts

    def _update(self, gradients: list[list[Tensor]]) -> None:
        """One step by the mean of some gradients, which are summed in order."""
        sums = gradients[0]
        for more in gradients[1:]:
            torch._foreach_add_(sums, more)
        torch._foreach_div_(sums, len(gradients))
        squared = squared_norm(sums, device=self._device).double().cpu()
        dist.all_reduce(squared, group=self._scalars)
        if not math.isfinite(squared.item()):
            text = f"the squared gradient norm is {squared.item()} in the store"
            raise FloatingPointError(f"{text}, after {len(self.arrivals)} gradients")
        recipe, taken = self._job.recipe, len(gradients)
        rate = learning_rate(recipe, self._samples) * taken / self._workers
        self._masters.update(rate, sums, gradient_factor(recipe, math.sqrt(squared.item())))
        self._wait_for_device()

    def _send_weights(self, readers: list[int], allowed: float) -> None:
        if self._rank in readers:  # first: it then receives what other shards send
            for group, weight in zip(self._gradients.groups, self._masters.weights, strict=True):
                self._part(group.flat, self._rank).copy_(weight)
            self._wait_for_device()
            self._reads.put(allowed)
        for reader in readers:
            if reader == self._rank:
                continue
            with self._counted(reader):
                for weight in self._masters.weights:
                    dist.send(weight, dst=reader, group=self._groups[self._rank])
            self._sent.update(self._newly_sent(reader))

    def _counted(self, reader: int) -> AbstractContextManager[object]:
        return self._counter if self._is_counted(reader) else nullcontext()

    def _newly_sent(self, reader: int) -> dict[str, int]:
        counted = self._counter.collectives() if self._is_counted(reader) else []
        return {
            "bytes": sum(each.payload_bytes for each in counted),
            "messages": sum(each.messages for each in counted),
        }

    def _is_counted(self, reader: int) -> bool:
        """Whether a worker now reads at the end of the step whose messages are counted."""
        return self._clocks.clocks[reader] == self._job.warm_up_steps + 1

    def _part(self, flat: Tensor, rank: int) -> Tensor:
        """The shard of a rank of a buffer of gradients or weights."""
        return flat.chunk(self._workers)[rank]

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self._workers) if rank != self._rank]

    def _wait_for(self, messages: Iterable[dist.Work | None]) -> None:
        for message in list(messages):
            if message is not None:
                message.wait()

    def _own_stream(self) -> AbstractContextManager[object]:
        """On a GPU what a shard computes does not wait for what its rank's worker computes, or for its messages."""
        if self._device.type != "cuda":
            return nullcontext()
        torch.cuda.set_device(self._device)
        return torch.cuda.stream(torch.cuda.Stream(self._device))

    def _wait_for_device(self) -> None:
        """Until what this thread has launched is done: another thread reads it, or its memory is used again."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
