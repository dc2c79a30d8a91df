"""Health of a GPU in the fabric of NVLink switches, as NVML reports it (on GB200 also that of its IMEX domain)."""

from __future__ import annotations

from typing import NamedTuple


class _Field(NamedTuple):
    """A field of the mask of health: bits from `shift` on, `width` of them set; 0 says that it is not offered.

    Args:
        bad: by value that is a problem, its words; all other values are good.
    """

    name: str
    shift: int
    width: int
    bad: dict[int, str]


class FabricProblem(NamedTuple):
    """A problem of the fabric.

    Args:
        fatal: whether the GPU cannot exchange messages as it should; otherwise it is being recovered from.
        part: that is at fault, of the GPU where it is empty.
        action: see `suite.records.battery.RecoveryAction`.
    """

    fatal: bool
    meaning: str
    part: str = ""
    action: str = "reset the GPU"


_YES = 1
# names, shifts, widths and values: nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*
FIELDS = {
    "DEGRADED_BW": _Field("degraded bandwidth", 0, 0x3, {_YES: "degraded bandwidth"}),
    "ROUTE_RECOVERY": _Field("route recovery", 2, 0x3, {_YES: "route recovery"}),
    "ROUTE_UNHEALTHY": _Field("route health", 4, 0x3, {_YES: "unhealthy route"}),
    "ACCESS_TIMEOUT_RECOVERY": _Field("access timeouts", 6, 0x3, {_YES: "access timeout recovery"}),
    "INCORRECT_CONFIGURATION": _Field(
        "configuration",
        8,
        0xF,
        {
            2: "incorrect system GUID",
            3: "incorrect chassis serial number",
            4: "no partition",
            5: "insufficient NVLinks",
            6: "incompatible GPU firmware",
            7: "invalid location",
            8: "invalid GPU state",
        },
    ),
    "PARTITION_ASSIGNED": _Field("partition", 12, 0x3, {2: "no partition assigned"}),
    "GFM_STATE": _Field("fabric manager", 14, 0x3, {2: "fabric manager disconnected"}),
}
SUMMARIES = {1: "healthy", 2: "unhealthy", 3: "limited capacity"}  # NVML_GPU_FABRIC_HEALTH_SUMMARY_*

_MANAGER, _RACK = "fabric manager", "configuration of the NVLink fabric"
PROBLEMS = {
    "degraded bandwidth": FabricProblem(fatal=True, meaning="some of its links carry less than they should"),
    "unhealthy route": FabricProblem(fatal=True, meaning="a route through the switches is broken"),
    "route recovery": FabricProblem(fatal=False, meaning="routes are being set anew", action="repeat"),
    "access timeout recovery": FabricProblem(
        fatal=False, meaning="accesses to other GPUs timed out, and are being recovered from", action="repeat"
    ),
    "incorrect system GUID": FabricProblem(True, "the GPU's system is not the one of its domain", _RACK, "return"),
    "incorrect chassis serial number": FabricProblem(
        True, "the GPU's chassis is not the one of its domain", _RACK, "return"
    ),
    "no partition": FabricProblem(True, "no partition of the fabric has the GPU", _RACK, "fix the setting"),
    "insufficient NVLinks": FabricProblem(fatal=True, meaning="fewer links trained than the domain needs"),
    "incompatible GPU firmware": FabricProblem(
        fatal=True, meaning="the manager does not accept its firmware", part="firmware", action="fix the setting"
    ),
    "invalid location": FabricProblem(True, "the GPU's tray or slot is none of its domain", _RACK, "reseat"),
    "invalid GPU state": FabricProblem(fatal=True, meaning="the manager does not accept the GPU's state"),
    "no partition assigned": FabricProblem(True, "the GPU reaches no other one by NVLink", _RACK, "fix the setting"),
    "fabric manager disconnected": FabricProblem(True, "nobody recovers links and routes", _MANAGER, "fix the setting"),
    "fabric unhealthy": FabricProblem(fatal=True, meaning="the driver's summary of the fabric's health"),
    "fabric with limited capacity": FabricProblem(fatal=False, meaning="the driver's summary of the fabric's health"),
}


def problems_in(mask: int) -> list[str]:
    """Problems that the mask of health reports, by their names in `PROBLEMS`; unknown values by their numbers."""
    found = []
    for field in FIELDS.values():
        value = mask >> field.shift & field.width
        if value in field.bad:
            found.append(field.bad[value])
        elif value > max(2, *field.bad):
            found.append(f"{field.name} {value}")
    return found


def unread_in(mask: int) -> list[str]:
    """Fields that the driver does not offer."""
    return [field.name for field in FIELDS.values() if not mask >> field.shift & field.width]


def fabric_problem(name: str) -> FabricProblem:
    """The problem with this name; one that is not known is not taken for a fault."""
    return PROBLEMS.get(name, FabricProblem(fatal=False, meaning="not known to this suite", action="repeat"))
