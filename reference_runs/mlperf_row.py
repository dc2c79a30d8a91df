"""A row of a published table from a log of MLPerf Training and the configuration beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from reference_runs.accelerator import accelerator_within
from reference_runs.errors import InputError
from reference_runs.mlperf_layout import Shell, configuration_beside, count, layout_cells, read_shell
from reference_runs.mlperf_log import LoggedRun, logged_run
from reference_runs.printable import csv_cell
from reference_runs.published_cells import STEP

# benchmark -> the model as tables name it: LoRA is in the name, so that `validate` does not take it for full training
MODELS = {
    "gpt3": "GPT-3 175B",
    "llama2_70b_lora": "Llama 2 70B LoRA",
    "llama31_405b": "Llama 3.1 405B",
    "llama31_8b": "Llama 3.1 8B",
    "deepseekv3": "DeepSeek-V3",
    "deepseekv3_671b": "DeepSeek-V3",
    "deepseek_v3_671b": "DeepSeek-V3",
    "gpt_oss_20b": "gpt-oss-20b",
}
COLUMNS = (
    *("source", "model", "seq_len", "gpu", "gpus", "gpus_per_node", "dtype", "dp", "tp", "pp", "cp", "ep", "vpp", "sp"),
    *("global_batch", "micro_batch", "accumulation", "framework", "network_bytes_per_second", STEP, "status"),
)
_SHAPE = ("layers", "hidden", "heads", "vocab")  # blank: the model's own


class MlperfRow(NamedTuple):
    """A row, and what is to be known of it.

    Args:
        cells: by column; blank ones are absent.
        notes: where its numbers come from, in words.
    """

    cells: dict[str, str]
    notes: tuple[str, ...]


def mlperf_row(log: Path, configuration: Path | None, stated: Mapping[str, str]) -> MlperfRow:
    """The row of the log at `log`.

    Args:
        configuration: the shell file of its layout; None: the config_*.sh beside the log, where there is one.
        stated: cells that the user gives; they come before those of the files.

    Raises:
        InputError: a file that cannot be read as what it is, no accelerator, or a batch or layout that log and
            configuration say differently.
    """
    configuration = configuration or configuration_beside(log)
    shell = None if configuration is None else read_shell(configuration)
    cells = {} if shell is None else dict(layout_cells(shell))
    of_layout = dict(cells)
    length = stated.get("seq_len") or cells.get("seq_len")
    run = logged_run(log, sequence=int(length) if length else None)
    for column in run.layout.keys() & cells.keys() - {"dtype"}:
        if run.layout[column] != cells[column]:
            what = f"{column} is {cells[column]} in the configuration, {run.layout[column]} in the log"
            raise InputError(what, where=str(log))
    cells |= run.layout
    cells |= {"global_batch": str(run.global_batch), STEP: f"{run.step_seconds:.6g}"}
    for column, number in (("seq_len", run.sequence), ("accumulation", run.accumulation), ("gpus", run.ranks)):
        if number is not None:
            cells[column] = str(number)
    cells |= stated
    if "gpu" not in cells:
        cells["gpu"] = _accelerator(run, configuration, shell)
    if shell is not None:
        _check_batch(shell, of_layout, run)
    if cells.get("gpus") != of_layout.get("gpus"):
        cells.pop("dp", None)  # of other accelerators; `validate` completes it
    cells["model"] = MODELS.get(run.benchmark, run.benchmark)
    of = [f"MLPerf Training {run.benchmark}".strip(), run.submitter, log.name]
    cells["source"] = ", ".join(each for each in (*of, f"seed {run.seed}" if run.seed else "") if each)
    if run.status not in ("", "success"):
        cells["status"] = run.status
    return MlperfRow(cells, tuple(_notes(run, shell)))


def row_text(row: MlperfRow) -> str:
    """The row as a table with its header, for `validate`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [*COLUMNS[:2], *_SHAPE, *COLUMNS[2:]]
    writer.writerow(columns)
    writer.writerow([csv_cell(row.cells.get(column, "")) for column in columns])
    return text.getvalue()


def _accelerator(run: LoggedRun, configuration: Path | None, shell: Shell | None) -> str:
    """The accelerator that the platform, the configuration's system or its file is called after."""
    system = "" if shell is None else shell.values.get("DGXSYSTEM", "")
    for text in (run.platform, system, "" if configuration is None else configuration.name):
        if found := accelerator_within(text):
            return found.name
    raise InputError("neither log nor configuration names an accelerator", got=run.platform or None, where="--on")


def _check_batch(shell: Shell, cells: Mapping[str, str], run: LoggedRun) -> None:
    """Refuse the configuration of another run: its samples of a replica times its replicas are another batch.

    Raises:
        InputError: MINIBS * dp is not the log's batch.
    """
    samples, replicas = count(shell, "MINIBS"), cells.get("dp")
    if samples is None or replicas is None or samples * int(replicas) == run.global_batch:
        return
    what = f"{samples} (MINIBS) * {replicas} (dp) = {samples * int(replicas)} samples, but the log's batch is"
    raise InputError(f"{what} {run.global_batch}", where=shell.where)


def _notes(run: LoggedRun, shell: Shell | None) -> list[str]:
    parts = f"{run.parts} {run.part}{'' if run.parts == 1 else 's'}"
    notes = [f"step time: median of {parts}, without evaluations, whose work the log counts in {run.counted_in}"]
    if run.layout:
        notes.append(f"{', '.join(run.layout)}: as events of the log say")
    elif shell is None:
        notes.append("layout: no config_*.sh beside the log; dp, tp, pp and micro_batch are blank")
    if shell is not None and shell.lacking:
        notes.append(f"layout: {', '.join(shell.lacking)}, which {Path(shell.where).name} includes, is not beside it")
    if run.status not in ("", "success"):
        notes.append(f"the run ended with status {run.status}: the row does not count as one that ran")
    return notes
