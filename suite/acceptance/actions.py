"""The next step for an operator about a finding: one table, from its check, its part and evidence, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from reference_runs.floors import NO_FLOOR
from suite.acceptance import check_table as check
from suite.job.events import Status
from suite.records.battery import CheckFinding, CheckVerdict, RecoveryAction

_EVERY = range(len(check.CHECKS))
_RATES_OF_RANKS = (check.MATRIX, check.SPREAD, check.STEP_TIME, check.STRAGGLER, check.SOAK)
_OPEN = (CheckVerdict.INVALID, CheckVerdict.INCONCLUSIVE)


class ActionRow(NamedTuple):
    """A row of the table, which applies to the findings that all of its conditions hold for.

    Args:
        words: what to do, as an order.
        checks: numbers of the checks.
        says: pattern of what the finding's subject, part and evidence say, in any case.
        statuses, verdicts: of the finding; empty: any.
        on_gpu: whether the battery ran on GPUs; None: either.
        command: that does it or shows more; None: the action's own. {gpu} is the number of the part's GPU.
    """

    action: RecoveryAction
    words: str
    checks: Collection[int] = _EVERY
    says: str = ""
    statuses: Collection[Status] = ()
    verdicts: Collection[CheckVerdict] = ()
    on_gpu: bool | None = None
    command: str | None = None


_A, _S, _V = RecoveryAction, Status, CheckVerdict
_NOT_READ = "read the record that it names again, or remove it"
_RESET_FIRST = "reset the GPU and run accept again; if it fails again, return the GPU"
# By action, on a node with GPUs and on one without
_COMMANDS = {
    (_A.FREE_NODE, True): "nvidia-smi --query-compute-apps=gpu_bus_id,pid,name,used_memory --format=csv",
    (_A.FREE_NODE, False): "ps -eo pid,user,pcpu,args --sort=-pcpu",
    (_A.RESET_GPU, True): "nvidia-smi --gpu-reset -i {gpu}",
    (_A.REBOOT_NODE, True): "dmesg --level=err,warn",
    (_A.RETURN, True): "nvidia-bug-report.sh",
    (_A.RETURN, False): "dmesg --level=err,warn",
    (_A.RESEAT, True): "nvidia-smi -q -i {gpu}",
}
# Of actions that a judge chose, where no row with that action applies
_WORDS = {
    _A.NONE: "nothing now",
    _A.REPEAT: "run accept again",
    _A.FREE_NODE: "wait for the other tenants, or ask them to stop",
    _A.FIX_SETTING: "set it as the evidence says",
    _A.RESET_GPU: _RESET_FIRST,
    _A.REBOOT_NODE: "reboot the node, and run accept again",
    _A.RESEAT: "check its cable, module or slot, and reseat it",
    _A.RETURN: "return it to its vendor, after its maker's diagnosis",
}
_GPU = re.compile(r"\bGPU (\d+)")

# The first row that applies counts: what is certain of hardware comes before what may be chance
ACTION_ROWS: tuple[ActionRow, ...] = (
    # a launch or a measurement that did not end well
    ActionRow(_A.RESET_GPU, _RESET_FIRST, says="uncorrectable ECC", statuses=(_S.CRASHED,)),
    ActionRow(
        _A.FIX_SETTING,
        "mend the software: Python cannot import a package",
        says=r"No module named|ImportError|cannot open shared object",
        statuses=(_S.CRASHED,),
    ),
    ActionRow(
        _A.FIX_SETTING,
        "make room for results and scratch files, in a container also in /dev/shm",
        says="results or scratch|No space left|a full disk",
    ),
    ActionRow(
        _A.FIX_SETTING,
        "raise the limit (ulimit -a), or let the ranks write",
        says="^the limit of|that cannot be written",
        statuses=(_S.CRASHED,),
    ),
    ActionRow(
        _A.FREE_NODE,
        "free the memory that other processes hold, or raise the limit of the container",
        statuses=(_S.OUT_OF_MEMORY,),
    ),
    ActionRow(_A.RESET_GPU, _RESET_FIRST, says=r"\bGPU \d+ stands out", statuses=(_S.HANG,)),
    ActionRow(
        _A.REPEAT,
        "run accept again; if it fails again, drain the node",
        statuses=(_S.HANG, _S.CRASHED, _S.NAN, _S.INTERRUPTED),
    ),
    # the environment
    ActionRow(
        _A.REBOOT_NODE,
        "look for XID 79 in the kernel log, and reboot; if a GPU stays away, reseat it",
        (check.ENVIRONMENT,),
        r"^GPUs: (none|\d+)(?: of| in place of|$)",
    ),
    ActionRow(
        _A.FREE_NODE,
        "wait for the other processes, or ask their owner to stop them",
        (check.ENVIRONMENT,),
        "^other processes|other processes:|of its memory are in use|SMT sibling|other guests",
    ),
    ActionRow(
        _A.RESEAT,
        "reseat the GPU, its riser or cable: its PCIe link trained lower",
        (check.ENVIRONMENT,),
        "PCIe (generation|width)",
    ),
    ActionRow(
        _A.FIX_SETTING,
        "start nvidia-fabricmanager (on NVL systems IMEX too) and wait until it has registered the GPUs",
        (check.ENVIRONMENT, check.ERRORS),
        "not registered with the NVLink switches|manager disconnected|no partition",
        command="systemctl restart nvidia-fabricmanager",
    ),
    ActionRow(
        _A.FIX_SETTING,
        "switch ECC on, and reset the GPU",
        (check.ENVIRONMENT,),
        "ECC off",
        command="nvidia-smi -i {gpu} -e 1",
    ),
    ActionRow(
        _A.FIX_SETTING,
        "switch MIG off, and reset the GPU",
        (check.ENVIRONMENT,),
        "MIG on",
        command="nvidia-smi -i {gpu} -mig 0",
    ),
    ActionRow(
        _A.FIX_SETTING,
        "set the default power limit",
        (check.ENVIRONMENT,),
        "power limit",
        command="nvidia-smi -q -d POWER -i {gpu}",
    ),
    ActionRow(
        _A.FIX_SETTING,
        "unlock the clocks of the GPU",
        (check.ENVIRONMENT, check.THROTTLE),
        "clock .* MHz",
        command="nvidia-smi -q -d CLOCK -i {gpu}",
    ),
    ActionRow(_A.FIX_SETTING, "install one driver and one firmware", (check.ENVIRONMENT,), "driver differs|firmware"),
    ActionRow(_A.FIX_SETTING, _NOT_READ, (check.ENVIRONMENT,), "^(fleet records|records of this node)"),
    ActionRow(_A.FIX_SETTING, "set the host as the evidence says", (check.ENVIRONMENT,)),
    # what nobody could judge
    ActionRow(_A.FIX_SETTING, "mend the clock or the timer of the device", says="work was not done", verdicts=_OPEN),
    ActionRow(_A.FIX_SETTING, "use deterministic algorithms", (check.REPLAYS,), verdicts=(_V.INVALID,)),
    ActionRow(_A.REPEAT, "run accept again with more time", says="time limit|no time was left", verdicts=_OPEN),
    ActionRow(_A.REPEAT, "mend the environment first, and run accept again", verdicts=(_V.INVALID,)),
    ActionRow(_A.REPEAT, "run accept again with --profile accept, which launches more", verdicts=(_V.INCONCLUSIVE,)),
    # wrong bits
    ActionRow(
        _A.RETURN,
        "return the GPU, after its maker's diagnosis: it computes wrong bits",
        (check.MATRIX, check.REPLAYS, check.SOAK, check.LOSS_CURVE),
        "to the bit|arithmetic",
        on_gpu=True,
    ),
    ActionRow(
        _A.RETURN,
        "test memory and processors, and return what is bad: they compute wrong bits",
        (check.MATRIX, check.REPLAYS, check.SOAK, check.LOSS_CURVE),
        "to the bit|arithmetic",
        on_gpu=False,
    ),
    ActionRow(
        _A.RETURN,
        "return the link's GPUs and switch for diagnosis: they change bits on their way",
        (check.PEER, check.ALL_REDUCE),
        "to the bit",
    ),
    ActionRow(_A.FIX_SETTING, "install the versions that predictions are of", (check.EXACT_FIGURES,)),
    ActionRow(_A.FIX_SETTING, "compare the software with a good node's", (check.LOSS_CURVE,)),
    # counters and clocks of GPUs
    ActionRow(
        _A.RETURN,
        "return the GPU: its memory can no longer be repaired",
        (check.ERRORS,),
        "replace the GPU|remapping a row failed",
    ),
    ActionRow(_A.RESET_GPU, _RESET_FIRST, (check.ERRORS,), "^launch of "),
    ActionRow(_A.REBOOT_NODE, "reboot; if the XID comes back, reseat the GPU", (check.ERRORS,), r"XID 79\b"),
    ActionRow(
        _A.RESET_GPU,
        "reset the GPU, so that the row is remapped",
        (check.ERRORS,),
        "waits to be remapped|uncorrectable[^;]* under load|uncorrectable ECC errors since",
    ),
    ActionRow(
        _A.RESEAT,
        "check the network card's cable and module, and reseat them and the card",
        (check.ERRORS,),
        "^network cards|^kernel log, network",
    ),
    ActionRow(_A.RETURN, "replace the memory module", (check.ERRORS,), "^host memory|^kernel log, host memory"),
    ActionRow(_A.RETURN, "replace the disk", (check.ERRORS,), "^NVMe disks|^kernel log, disks"),
    ActionRow(
        _A.REBOOT_NODE,
        "reboot, so that the NVSwitches start anew; if it comes back, return their board",
        (check.ERRORS,),
        "^kernel log, NVSwitch",
    ),
    ActionRow(
        _A.RESEAT,
        "reseat the PCIe device, its riser or cable",
        (check.ERRORS,),
        "^PCIe errors|^kernel log, PCIe|PCIe replays",
    ),
    ActionRow(
        _A.RESEAT,
        "check the NVLink module, bridge or cable, and reseat it",
        (check.ERRORS,),
        "went down|links active, |degraded bandwidth|unhealthy route|insufficient NVLinks",
        command="nvidia-smi nvlink -s -i {gpu}",
    ),
    ActionRow(_A.RESET_GPU, _RESET_FIRST, (check.ERRORS,), r"XID \d+\b(?! \(of a program\))"),
    ActionRow(_A.NONE, "nothing: a program caused it", (check.ERRORS,), r"XID \d+"),
    ActionRow(_A.NONE, "nothing now: watch whether the counter grows", (check.ERRORS,)),
    ActionRow(
        _A.RESEAT,
        "check power supplies and their cables",
        (check.THROTTLE,),
        "power brake",
        command="nvidia-smi -q -d POWER,PERFORMANCE -i {gpu}",
    ),
    ActionRow(
        _A.RESEAT,
        "check fans, air flow, and the cold plate",
        (check.THROTTLE,),
        command="nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i {gpu}",
    ),
    # rates
    ActionRow(
        _A.NONE,
        "nothing on the node: accept three of its kind, and `fleet references` prints your own floor",
        says=f"^{NO_FLOOR}:",
    ),
    ActionRow(
        _A.FIX_SETTING,
        "restart nvidia-fabricmanager, and compare the driver with a good node's",
        (check.ALL_REDUCE,),
        "fabric manager",
        command="systemctl restart nvidia-fabricmanager",
    ),
    ActionRow(
        _A.RESEAT,
        "check the link's module, cable or slot, and reseat it",
        (check.HOST_DEVICE, check.PEER, check.ALL_REDUCE, check.STEP_TIME),
        "^links?|^busbw|^(host to device|device to host)|^all-to-all|^host-device link",
        verdicts=(_V.FAIL,),
        on_gpu=True,
        command="nvidia-smi topo -m",
    ),
    ActionRow(
        _A.FIX_SETTING,
        "compare the host's daemons, clock governor and BIOS with a good node's",
        (check.STEP_TIME, check.ATTRIBUTION, check.JITTER),
        r"^(host \(|host, |in no term)",
        verdicts=(_V.FAIL,),
    ),
    ActionRow(_A.RESET_GPU, _RESET_FIRST, (*_RATES_OF_RANKS, check.MEMORY), verdicts=(_V.FAIL,), on_gpu=True),
    ActionRow(
        _A.RESEAT,
        "check that every memory channel has its module",
        (check.MEMORY, check.STEP_TIME),
        "^memory bandwidth",
        verdicts=(_V.FAIL,),
        on_gpu=False,
    ),
    ActionRow(
        _A.FIX_SETTING,
        "check cooling, power limit and clock governor of the processors",
        _RATES_OF_RANKS,
        verdicts=(_V.FAIL,),
        on_gpu=False,
    ),
    ActionRow(_A.REPEAT, "run accept again; if it comes back, compare the node with others"),
)


def action_row(finding: CheckFinding, *, on_gpu: bool) -> ActionRow | None:
    """The row of the table for a finding that fails, warns or is not decidable; None for others.

    Where the finding has an action already, that counts: of its row in the table only the words.

    Args:
        on_gpu: whether the battery ran on GPUs.
    """
    if finding.verdict in (CheckVerdict.PASS, CheckVerdict.NOT_RUN):
        return None
    rows = [row for row in ACTION_ROWS if _applies(row, finding, on_gpu=on_gpu)]
    if finding.action is None:
        return rows[0]
    own = next((row for row in rows if row.action is finding.action), None)
    return own or ActionRow(finding.action, _WORDS[finding.action])


def _applies(row: ActionRow, finding: CheckFinding, *, on_gpu: bool) -> bool:
    said = joined(finding)
    return (
        finding.check in row.checks
        and (not row.statuses or finding.status in row.statuses)
        and (not row.verdicts or finding.verdict in row.verdicts)
        and row.on_gpu in (None, on_gpu)
        and re.search(row.says, said, re.IGNORECASE | re.MULTILINE) is not None
    )


def joined(finding: CheckFinding) -> str:
    """Subject, part and evidence, a line each."""
    return "\n".join((finding.subject, finding.part, finding.evidence))


def with_action(finding: CheckFinding, *, on_gpu: bool) -> CheckFinding:
    """The finding with what to do next; one that passes or did not run as it is. What a judge has set stays."""
    row = action_row(finding, on_gpu=on_gpu)
    if row is None:
        return finding
    command = _COMMANDS.get((row.action, on_gpu), "") if row.command is None else row.command
    return msgspec.structs.replace(
        finding,
        action=row.action,
        to_do=finding.to_do or row.words,
        command=finding.command or _for_part(command, finding.part),
    )


def _for_part(command: str, part: str) -> str:
    """The command for the part's first GPU; for all where the part names none."""
    numbers = _GPU.findall(part)
    if numbers:
        return command.replace("{gpu}", numbers[0])
    return re.sub(r" -i \{gpu\}", "", command)
