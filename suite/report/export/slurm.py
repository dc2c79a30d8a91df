"""A training as a batch script of Slurm, which starts torchrun with the software of the plan on every node."""

from __future__ import annotations

import re

from reference_runs.errors import InputError
from suite.report.export.deepspeed import deepspeed
from suite.report.export.job import ExportedJob, torchrun_options
from suite.report.export.left_out import comment
from suite.report.export.megatron import megatron_script
from suite.report.export.torchtitan import torchtitan


def slurm(job: ExportedJob) -> str:
    """The script: nodes and accelerators, the rendezvous on the first node, and a torchrun on each.

    Megatron's stacks start pretrain_gpt.py, `pytorch` torchtitan, those of DeepSpeed a script that is to be filled in.

    Raises:
        InputError: no script is known of the stack, or it has no place for something of the training.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", job.name.rpartition("/")[2].removesuffix(".toml"))
    head = f"""\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={job.nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={job.ranks_of_node}
#SBATCH --exclusive
# To fill in, as the cluster needs it: #SBATCH --account, --partition, --time
set -euo pipefail
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
"""
    started = torchrun_options(job, head="$HEAD", identity='"$SLURM_JOB_ID"')
    software = software_of(job.stack)
    if software == "megatron":
        return head + megatron_script(job, started, prefix="srun ")
    if software == "torchtitan":
        return head + _with_file(torchtitan(job), "toml", f"{started} -m torchtitan.train --job.config_file")
    if software == "deepspeed":
        words = f"# {job.title}\n{comment(job, 'deepspeed')}SCRIPT=/path/to/train.py  # to fill in\n"
        return head + words + _with_file(deepspeed(job), "json", f'{started} "$SCRIPT" --deepspeed --deepspeed_config')
    allowed = "--stack megatron-core, pytorch or megatron-deepspeed"
    raise InputError("no script is known of this software", got=job.stack, allowed=allowed, where="--export")


def software_of(stack: str) -> str:
    """The format whose software a stack is of; empty where none is."""
    if stack.startswith("megatron-") and stack != "megatron-deepspeed":
        return "megatron"
    if stack in ("pytorch", "llama-3") or stack.startswith("torchtitan"):
        return "torchtitan"
    return "deepspeed" if "deepspeed" in stack else ""


def _with_file(text: str, ending: str, options: str) -> str:
    """Lines that write a configuration where all nodes see it, and start torchrun with it."""
    file = f"$SLURM_SUBMIT_DIR/job-$SLURM_JOB_ID.{ending}"
    return f'cat > "{file}" <<\'END\'\n{text}END\nsrun torchrun {options} "{file}"\n'
