"""A training in one layout, as it is exported, and the refusal of features that a format has no place for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reference_runs.catalog import accumulation, global_batch_at
from reference_runs.errors import InputError
from reference_runs.incomplete import missing_keys
from reference_runs.layout import layout_text
from reference_runs.printable import printable
from reference_runs.run import Workload

_RAMP_UP = ("batch_rampup_start", "batch_rampup_increment", "batch_rampup_samples")


class ExportedJob(NamedTuple):
    """A training in one layout.

    Args:
        name: a recorded run, or a run file ending in .toml.
        accelerators_per_node: of the machine that it was planned for.
        stack: software that the plan is of, by its name in reference_runs/stacks.toml.
        tokens: trained on.
        global_batch: samples that were asked for in place of the run's own.
        own_samples: of the training that the run records, whose share its warm-up and decay are; None: as `samples`.
    """

    name: str
    workload: Workload
    accelerators_per_node: int
    stack: str
    tokens: int
    global_batch: int | None = None
    own_samples: int | None = None

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a rank and step."""
        return accumulation(self.workload.recipe, self.workload.layout)

    @property
    def ranks_of_node(self) -> int:
        """Processes of a node; all nodes have as many.

        Raises:
            InputError: they cannot.
        """
        ranks, node = self.workload.layout.ranks, self.accelerators_per_node
        if ranks > node and ranks % node:
            raise InputError("nodes are whole", got=ranks, allowed=f"a multiple of {node}", where="--gpus")
        return min(ranks, node)

    @property
    def nodes(self) -> int:
        """Hosts of the job."""
        return self.workload.layout.ranks // self.ranks_of_node

    @property
    def title(self) -> str:
        """The run and all of its layout, in one line of words that a comment of any language can have."""
        return printable(f"{self.name}: {layout_text(self.workload.layout, complete=True)}", lines=False)

    def recorded(self, key: str) -> object:
        """A value of the recipe; None where a run file leaves it out."""
        return None if key in missing_keys(self.workload.recipe) else getattr(self.workload.recipe, key)

    @property
    def samples(self) -> int:
        """Samples of the whole training.

        Raises:
            InputError: there are not even those of one step.
        """
        sequence, batch = self.workload.architecture.sequence, self.workload.recipe.global_batch
        if self.tokens < sequence * batch:
            allowed = f"at least {sequence * batch:,}, the tokens of one step"
            raise InputError("too few tokens to train on", got=self.tokens, allowed=allowed, where="--tokens")
        return self.tokens // sequence

    @property
    def steps(self) -> int:
        """Steps of the whole training, the last of which may have samples beyond it."""
        return self.steps_of(self.samples)

    def steps_of(self, samples: int) -> int:
        """Steps until so many samples have been trained on, of batches that may grow."""
        recipe, seen, steps = self.workload.recipe, 0, 0
        if self.ramp_up is not None:
            start, increment, grown = self.ramp_up
            increments = max(1, (recipe.global_batch - start) // increment)
            while seen < min(samples, grown):
                batch = global_batch_at(recipe, seen)
                level = seen * increments // grown
                end = min(samples, -(-(level + 1) * grown // increments))  # the first sample of a larger batch
                whole = -(-(end - seen) // batch)
                seen, steps = seen + whole * batch, steps + whole
        return steps + max(0, -(-(samples - seen) // recipe.global_batch))

    @property
    def ramp_up(self) -> tuple[int, int, int] | None:
        """First batch, increment and samples until the whole batch; None: batches are whole from the beginning."""
        found = [self.recorded(key) for key in _RAMP_UP]
        start, increment, samples = (value if isinstance(value, int) else 0 for value in found)
        return (start, increment, samples) if start else None


def torchrun_options(job: ExportedJob, *, head: str, identity: str = "1") -> str:
    """Options of torchrun, the same on every node: processes, nodes and their rendezvous.

    Args:
        head: name of the first node, as a shell writes it.
        identity: of the job, the same on all nodes.

    Raises:
        InputError: as `ExportedJob.ranks_of_node`.
    """
    processes = f"--nnodes {job.nodes} --nproc-per-node {job.ranks_of_node}"
    if job.nodes == 1:
        return f"--standalone {processes}"
    return f'{processes} --rdzv-backend c10d --rdzv-endpoint "{head}:29500" --rdzv-id {identity}'


def on_each(job: ExportedJob) -> str:
    """Words that say where torchrun is started; HEAD stands for a node's name in what follows."""
    return "on the node" if job.nodes == 1 else f"on each of {job.nodes} nodes, HEAD being the first one's name,"


def refuse(software: str, reasons: Iterable[tuple[bool, str]]) -> None:
    """Refuse what the software has no place for.

    Args:
        reasons: whether it applies, and what there is no place for.

    Raises:
        InputError: any does; the line names all of them.
    """
    found = [words for wrong, words in reasons if wrong]
    if found:
        raise InputError(f"{software} has no place for {', '.join(found)}", where="--export")
