"""Operators of small tensors on simulated devices, computed by PyTorch's own CPU kernels in the same memory.

PyTorch calls `compute_on_host` when it is imported (entry point torch.backends). Where SIMULATED_CUDA_VALUES is a
number of bytes, each operator with a CUDA kernel gets one in Python. The kernel that computes nothing is launched in
any case: it takes its time, and allocates what it would. If the operator's tensors are no larger, the host then waits
for it, computes, and writes the results into its memory: order and host times are those of a GPU only without this.
Triton kernels of such tensors are launched, and then interpreted; those of torch.compile are launched alone.
"""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from typing import Any

# Operators that compute nothing: they allocate, look at memory in another way, or move it through the runtime.
LEFT = re.compile(
    r"aten::(empty|as_strided|view|_reshape_alias|unfold$|set_|resize|record_stream|is_set_to|is_pinned|_pin_memory"
    r"|_local_scalar_dense|_copy_from|lift|detach|alias|_has_same_storage|cudnn|_cudnn|miopen|_scaled_dot_product"
    r"|_fused_sdp|_flash|_efficient|_fill_mem_eff|_sparse|_validate|_coalesced|_indices|_values|_nested)"
)
# No kernel is launched for operators whose results have as many elements as their operands' values say, and for a power
# of a number, whose kernel makes a tensor of it that Python cannot be handed.
ATTENTION = re.compile(r"aten::_scaled_dot_product_(cudnn|flash|efficient)_attention(_backward)?$")
BY_VALUES = re.compile(r"aten::(nonzero|masked_select|unique|_unique|pow\.Scalar)")
HALVES = ("float16", "bfloat16")


def compute_on_host() -> None:
    """Register the operators, where it is asked for."""
    limit = int(os.environ.get("SIMULATED_CUDA_VALUES", "0"))
    if not limit:
        return
    import torch

    library = torch.library.Library("aten", "IMPL")
    warnings.filterwarnings("ignore", "Warning only once for all operators")  # that kernels are overridden
    # copy_ is one operator for all devices, which starts a kernel of its own
    for name in [*torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"), "aten::copy_"]:
        if not name.startswith("aten::") or (LEFT.match(name) and not ATTENTION.match(name)):
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if operator is not None:
            kernel = torch.library.get_kernel(name, "CUDA")
            if ATTENTION.match(name):
                call = _attention_on_host(operator, kernel, limit)
            else:
                call = _on_host(operator, kernel, limit, launches=not BY_VALUES.match(name))
            library.impl(name.removeprefix("aten::"), call, "CUDA", with_keyset=True, allow_override=True)
    _interpret_triton(limit)
    compute_on_host.library = library  # type: ignore[attr-defined] # it is undone when the library is collected


def _on_host(operator: Any, kernel: Any, limit: int, *, launches: bool) -> Any:
    import torch
    from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

    tensors = [str(argument.type) == "Tensor" for argument in operator._schema.arguments]
    is_product = operator._schema.name == "aten::mm"
    in_8_bits = "_scaled_mm" in str(operator)  # oneDNN may multiply by its reference (scaled_products.py)

    def call(keyset: Any, *arguments: Any, **options: Any) -> Any:
        given = [leaf for leaf in tree_flatten((arguments, options))[0] if isinstance(leaf, torch.Tensor)]
        wide = any(tensor.dtype == torch.float64 for tensor in given)
        arguments = tuple(  # numbers arrive as such
            torch.tensor(value, dtype=torch.float64 if wide and isinstance(value, float) else None)
            if is_tensor and isinstance(value, (bool, int, float, complex))
            else value
            for value, is_tensor in zip(arguments, tensors, strict=False)
        )
        on_device = [tensor for tensor in given if tensor.is_cuda]
        mixed = any(tensor.device.type == "cpu" and tensor.ndim for tensor in given)  # a copy to or from the host
        if mixed or not _small(given, limit) or not on_device:
            return kernel.call_boxed(keyset, *arguments, **options)
        launched = kernel.call_boxed(keyset, *arguments, **options) if launches else None
        stream = torch.cuda.current_stream(on_device[0].device)
        if not stream.query():
            stream.synchronize()
        lent: list[tuple[Any, Any]] = []  # a tensor on the device, and its memory as one of the host

        def to_host(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                lent.append((leaf, host_view(leaf)))
                return lent[-1][1]
            if isinstance(leaf, torch.device) and leaf.type == "cuda":
                return torch.device("cpu")
            return None if isinstance(leaf, torch.Generator) else leaf

        def to_device(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            for original, view in lent:
                if leaf is view:
                    return original
            result = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=on_device[0].device)
            host_view(result).copy_(leaf)
            return result

        on_host = tree_map(to_host, (arguments, options))
        if in_8_bits:
            torch._C._set_mkldnn_enabled(False)
        try:
            in_halves = is_product and str(on_host[0][0].dtype).removeprefix("torch.") in HALVES
            computed = (_product if in_halves else operator)(*on_host[0], **on_host[1])
        except RuntimeError:  # the host's kernel wants one precision, where the device's takes 16 bits and fp32
            computed = _in_fp32(operator, *on_host)
        finally:
            if in_8_bits:
                torch._C._set_mkldnn_enabled(True)
        if launches:
            for result, right in zip(tree_leaves(launched), tree_leaves(computed), strict=True):
                if isinstance(result, torch.Tensor) and right.numel() and not any(right is view for _, view in lent):
                    host_view(result).copy_(right)
            return launched if isinstance(launched, (torch.Tensor, tuple, list)) else computed
        for original, view in lent:
            if view.shape != original.shape:  # an empty `out` was made larger
                original.resize_(view.shape)
                host_view(original).copy_(view)
        return tree_map(to_device, computed)

    return call


def _attention_on_host(operator: Any, kernel: Any, limit: int) -> Any:
    """Fused attention, or its gradients: in fp32 by plain products. Nothing is dropped out."""
    import torch

    names = [argument.name.rstrip("_") for argument in operator._schema.arguments]

    def call(keyset: Any, *arguments: Any, **options: Any) -> Any:
        launched = kernel.call_boxed(keyset, *arguments, **options)
        given = dict(zip(names, arguments, strict=False)) | options
        inputs = [given[name] for name in ("query", "key", "value")]
        if not _small(inputs, limit):
            return launched
        torch.cuda.current_stream(inputs[0].device).synchronize()
        q, k, v = (host_view(tensor).float() for tensor in inputs)
        scale = given.get("scale") or q.shape[-1] ** -0.5
        scores = q @ k.transpose(-1, -2) * scale
        if given["is_causal"]:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
        weights = scores.softmax(-1)
        computed = [weights @ v]
        if "grad_out" in given:
            incoming = host_view(given["grad_out"]).float()
            of_weights = incoming @ v.transpose(-1, -2)
            of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * scale
            computed = [of_scores @ k, of_scores.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ incoming]
        for result, right in zip(launched, computed, strict=False):
            host_view(result).copy_(right)
        return launched

    return call


def _small(tensors: list[Any], limit: int) -> bool:
    """Whether all of them are so small that they are computed with."""
    return all(tensor.numel() * tensor.element_size() <= limit for tensor in tensors)


def _interpret_triton(limit: int) -> None:
    """Have Triton's kernels interpreted, too, after each launch."""
    try:
        from triton.runtime import interpreter, jit
    except ImportError:
        return
    launch = jit.JITFunction.run
    interpreted: dict[Any, Any] = {}

    def as_interpreted(kernel: Any) -> Any:
        if kernel.fn not in interpreted:  # a kernel itself is hashed with all that it refers to, patched or not
            interpreted[kernel.fn] = interpreter.InterpretedFunction(kernel.fn)
        return interpreted[kernel.fn]

    def of_host(argument: Any) -> Any:
        return host_view(argument) if hasattr(argument, "untyped_storage") else argument

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        launched = launch(kernel, *arguments, grid=grid, warmup=warmup, **options)
        tensors = [each for each in (*arguments, *options.values()) if hasattr(each, "untyped_storage")]
        if not warmup and _small(tensors, limit):
            import torch

            from kernels.interpreter import round_to_nearest

            round_to_nearest()
            torch.cuda.current_stream(tensors[0].device).synchronize()
            on_host = [of_host(each) for each in arguments]
            as_interpreted(kernel)[grid](*on_host, **{name: of_host(each) for name, each in options.items()})
        return launched

    def call(kernel: Any, *arguments: Any, **options: Any) -> Any:
        """A function of Triton's that an interpreted kernel calls."""
        patched = interpreter._patch_lang(kernel.fn)  # which InterpretedFunction leaves patched
        try:
            return as_interpreted(kernel).rewrite()(*arguments, **options)
        finally:
            patched.restore()

    jit.JITFunction.run, jit.JITFunction.__call__ = run, call


def _product(left: Any, right: Any, *, out: Any = None) -> Any:
    """A product of 16 bits by way of fp32, rounded once, as a GPU's is.

    A processor without a unit for bf16 takes 25 ms for 320 x 320 matrices, and 0.8 ms this way (2026-11-29): eight
    ranks that share two such processors would wait for them most of the time.
    """
    result = (left.float() @ right.float()).to(left.dtype)
    return result if out is None else out.copy_(result)


def _in_fp32(operator: Any, arguments: Any, options: Any) -> Any:
    """The results of an operator that changes none of its operands, from operands in fp32."""
    import torch
    from torch.utils._pytree import tree_map

    def widened(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and str(leaf.dtype).removeprefix("torch.") in HALVES:
            return leaf.float()
        return torch.float32 if isinstance(leaf, torch.dtype) and str(leaf).removeprefix("torch.") in HALVES else leaf

    if operator._schema.is_mutable:
        raise NotImplementedError(f"{operator} in mixed precision")
    arguments, options = tree_map(widened, (arguments, options))
    if operator._schema.name in ("aten::_softmax", "aten::_log_softmax"):
        arguments = (*arguments[:2], False)  # operands in 16 bits, results in fp32
    return operator(*arguments, **options)


def host_view(tensor: Any) -> Any:
    """The memory of a tensor on a simulated device, as a tensor of the host."""
    import torch

    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_char * (extent * tensor.element_size())).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
