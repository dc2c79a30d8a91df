"""How a launch uses its devices: compilation, kernels, and shared GPUs."""

from __future__ import annotations

from reference_runs.errors import InputError
from reference_runs.layout import Layout
from suite.job.options import KernelChoice, Optimization
from suite.machine.packages import compilation_missing, require
from suite.predict.simulation.launched_options import not_compiled
from suite.predict.simulation.optimizations import RULES, PlannedLaunch, default_optimizations, lacking_by_default


def checked_compilation(asked: bool | None, device: str, layout: Layout) -> tuple[bool, tuple[str, ...]]:
    """Whether blocks are compiled, by default on CUDA alone; and in words why not, where the layout or machine is why.

    Raises:
        InputError: it is asked for where a compiler is missing, or the gradients of weights are found apart from those
            of inputs, which a compiled block finds together, or passes use several versions of the weights.
    """
    wanted = device == "cuda" if asked is None else asked
    missing = not_compiled(layout) or compilation_missing(device)
    if not wanted or not missing:
        return wanted, ()
    if asked:
        raise InputError("cannot compile here", got=missing, allowed="--no-compile", where="--compile")
    return False, (f"eager, not compiled: {missing}",)


def checked_kernels(kernels: str, device: str) -> KernelChoice:
    """The kernels that were asked for.

    Raises:
        InputError: an unknown word, or Triton where it is not installed or, on a GPU, cannot compile.
    """
    if kernels not in list(KernelChoice):
        raise InputError("unknown kernels", got=repr(kernels), allowed=", ".join(KernelChoice), where="--kernels")
    if kernels == KernelChoice.TRITON:
        require("triton")
    if kernels == KernelChoice.TRITON and device == "cuda" and (missing := compilation_missing(device)):
        raise InputError("Triton cannot compile here", got=missing, allowed="torch", where="--kernels")
    return KernelChoice(kernels)


def checked_optimizations(asked: str | None, launch: PlannedLaunch) -> tuple[tuple[Optimization, ...], tuple[str, ...]]:
    """The optimizations of a launch, those by default where none are asked; and in words what it lacks of these.

    Args:
        asked: "none", "default", or names with commas between them.

    Raises:
        InputError: an unknown name, or an optimization that the launch cannot have or whose package is missing.
    """
    names = named_optimizations(asked)
    if names is None:
        return default_optimizations(launch), lacking_by_default(launch)
    for name in names:
        rule = RULES[name]
        if reason := rule.why_not(launch):
            allowed = f"none of them, as there is {reason}"
            raise InputError("not possible here", got=name.value, allowed=allowed, where="--optimizations")
        if not rule.is_installed:
            require(rule.package)
    return names, ()


def named_optimizations(asked: str | None) -> tuple[Optimization, ...] | None:
    """The optimizations of a list of names, in their own order; None where the default ones are asked, or nothing is.

    Raises:
        InputError: an unknown name, or none or default beside names.
    """
    where = "--optimizations"
    names = ["default"] if asked is None else [name.strip() for name in asked.split(",")]
    if names == ["default"]:
        return None
    if names == ["none"]:
        return ()
    for name in ("none", "default"):
        if name in names:
            raise InputError(
                f"{name} stands alone", got=repr(asked), allowed=f"{name}, or names without it", where=where
            )
    for name in names:
        if name not in [known.value for known in RULES]:
            allowed = ", ".join(["none", "default", *(known.value for known in Optimization if known in RULES)])
            raise InputError("unknown optimization", got=repr(name), allowed=allowed, where=where)
    return tuple(known for known in Optimization if known in names)


def checked_sharing(asked: bool, device: str, *, ranks: int, devices: int) -> tuple[bool, tuple[str, ...]]:
    """Whether ranks share GPUs, as more ranks than GPUs may where it is asked for; and in words what that changes.

    Raises:
        InputError: it is asked for without GPUs, or not asked for and needed.
    """
    if device != "cuda":
        if asked:
            raise InputError("no GPUs to share", got=device, allowed="cuda", where="--share-devices")
        return False, ()
    if ranks <= devices:
        return False, ()
    if not asked:
        allowed = f"at most {devices}, or with --share-devices, for exact figures and memory"
        raise InputError("more ranks than GPUs", got=ranks, allowed=allowed, where="--ranks")
    where = f"{devices} GPU{'s' if devices > 1 else ''} (rank modulo {devices})"
    return True, (f"{ranks} ranks share {where}, over gloo: times do not compare with ranks on own GPUs",)
