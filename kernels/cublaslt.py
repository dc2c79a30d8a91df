"""Matrix multiplications by cuBLASLt, with its epilogues and the choice among its algorithms.

The library is the one that PyTorch's CUDA build has loaded, called through ctypes: a node needs no compiler, header or
package for it. Handles, enumerations and calls of its interface have been stable since CUDA 11. The libraries
of nvidia-cublas-cu12 12.8.5 and nvidia-cublas 13.1.0 take the descriptions below and read them back (without a GPU,
2026-11-30).

Legend, row-major as PyTorch's: out [M, N] = left [M, K] right [K, N], where either may be stored transposed. cuBLASLt's
matrices are column-major, so that it multiplies right^T left^T: its A is right, its B is left, and the rows of its D
are the N columns of out. Products are added in fp32.

Source: NVIDIA, cuBLAS 13.1 documentation, "Using the cuBLASLt API"; its header cublasLt.h, which has the numbers below.
"""

from __future__ import annotations

import ctypes
import enum
import os
import statistics
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from ctypes import POINTER, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

WORKSPACE_BYTES = 32 << 20  # of a stream: what NVIDIA recommends for Hopper, and PyTorch gives cuBLAS there
MOST_ALIGNMENT, LEAST_ALIGNMENT = 256, 16  # bytes of an address: of the library's heuristics, of its fast kernels
SAMPLED_ROWS = 512  # of a result, that are compared
DEFAULT_STREAM = 0  # its handle in CUDA, where PyTorch computes unless another is made current
CANDIDATES = 16  # algorithms that are timed for a shape
ROUNDS, CALLS = 3, 10  # rounds over the candidates, and timed calls of each in a round: the median of rounds counts
DATA_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # cudaDataType_t
COMPUTE_32F = 68  # cublasComputeType_t
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LD = 3, 4, 7, 8, 11, 12  # cublasLtMatmulDescAttributes_t
MAX_WORKSPACE, REDUCTION_SCHEMES, ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t
# Of split depths only those whose parts are added in fp32: in place or in the output's type they would be rounded
COMPUTE_TYPE_SCHEME = 2
NOT_SUPPORTED = 15
STATUS = {
    **{1: "not initialized", 3: "allocation failed", 7: "invalid value", 8: "architecture mismatch"},
    **{13: "execution failed", 14: "internal error", 15: "not supported"},
}


class Epilogue(enum.IntEnum):
    """The work on each element of out, or beside the product (cublasLtEpilogue_t).

    GELU_AUX: aux [M, N] = the product, out = GELU of it, tanh's approximation; GELU_AUX_BIAS: of it plus bias [N].
    DGELU: out = the product times GELU's derivative at aux [M, N].
    BGRADB: bias [M] = sums of left's rows: the gradient of a bias, where left is the transposed gradient.
    """

    NONE = 1
    GELU_AUX = 32 | 128
    GELU_AUX_BIAS = 32 | 128 | 4
    DGELU = 64 | 128
    BGRADB = 512


class CublasLtError(RuntimeError):
    """A call of the library failed: which, and its status."""


class _LibraryAlgorithm(ctypes.Structure):
    _fields_ = (("data", c_uint64 * 8),)


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", _LibraryAlgorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_ONE, _ZERO = c_float(1.0), c_float(0.0)
_lock = threading.RLock()  # the pointers of a description and its call belong together
_handles: dict[int, c_void_p] = {}
_workspaces: dict[tuple[int, int], Tensor] = {}


@cache
def library() -> Any:
    """The libcublasLt that PyTorch has loaded.

    Raises:
        OSError: PyTorch has loaded none.
    """
    major = (torch.version.cuda or "").partition(".")[0]
    loaded = ctypes.CDLL(f"libcublasLt.so.{major}", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    loaded.cublasLtMatmul.argtypes = (
        *(c_void_p, c_void_p, POINTER(c_float), c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_float)),
        *(c_void_p, c_void_p, c_void_p, c_void_p, POINTER(_LibraryAlgorithm), c_void_p, c_size_t, c_void_p),
    )
    return loaded


class Gemm(NamedTuple):
    """A product to compute: out = left right, each of which may be stored transposed, [K, M] and [N, K].

    Args:
        left, right, out: of one dtype; the elements of a row lie one after the other.
        transposed: whether left and right are.
        bias, aux: of the epilogue, of the same dtype.
        plain: computes the same by PyTorch's operators, into out, bias and aux.
    """

    left: Tensor
    right: Tensor
    out: Tensor
    transposed: tuple[bool, bool]
    epilogue: Epilogue
    bias: Tensor | None
    aux: Tensor | None
    plain: Callable[[], object]

    @property
    def tensors(self) -> list[Tensor]:
        """All that are read or written."""
        return [each for each in (self.left, self.right, self.out, self.bias, self.aux) if each is not None]

    @property
    def results(self) -> list[Tensor]:
        """All that are written: out, then what the epilogue writes beside it."""
        beside = {Epilogue.BGRADB: self.bias}
        beside |= dict.fromkeys((Epilogue.GELU_AUX, Epilogue.GELU_AUX_BIAS), self.aux)
        more = beside.get(self.epilogue)
        return [self.out] if more is None else [self.out, more]

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """All that an algorithm depends on: shapes, strides, dtype, epilogue, device, alignment of addresses."""
        sizes = [(*each.shape, each.stride(0)) for each in self.tensors]
        out = self.out
        return (*sizes, self.transposed, self.epilogue, out.dtype, out.device.index, self.alignment)

    @property
    def alignment(self) -> int:
        """Bytes by which all addresses can be divided, a power of two up to 256."""
        addresses = MOST_ALIGNMENT
        for each in self.tensors:
            addresses |= each.data_ptr()
        return addresses & -addresses


def _call(name: str, *arguments: Any) -> None:
    if status := getattr(library(), name)(*arguments):
        raise CublasLtError(f"{name}: {STATUS.get(status, status)}")


def _set(name: str, owner: c_void_p, attribute: int, value: Any) -> None:
    _call(name, owner, attribute, byref(value), c_size_t(ctypes.sizeof(value)))


def _handle(device: int) -> c_void_p:
    if device not in _handles:
        _call("cublasLtCreate", byref(made := c_void_p()))
        _handles[device] = made
    return _handles[device]


def _workspace(device: int, stream: int) -> Tensor:
    """Workspace of a stream, whose products run one after the other; it stays, as PyTorch's own do.

    A stream that is captured has the default stream's: the graph is to be launched on the default stream, or in order
    with its products. Where that has none yet, the graph's memory has one, which goes with the graph.
    """
    capturing = torch.cuda.is_current_stream_capturing()
    place = device, DEFAULT_STREAM if capturing else stream
    if (made := _workspaces.get(place)) is None:
        made = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=f"cuda:{device}")
        if not capturing:
            _workspaces[place] = made
    return made


class _Descriptions:
    """Descriptions of products of one kind: they stay, and only pointers change from call to call."""

    def __init__(self, product: Gemm) -> None:
        self._device = product.out.device.index
        self._handle = _handle(self._device)
        self._operation, self._bias, self._aux = c_void_p(), c_void_p(), c_void_p()
        _call("cublasLtMatmulDescCreate", byref(self._operation), COMPUTE_32F, DATA_TYPES[torch.float32])
        of_left, of_right = product.transposed
        self._attribute(TRANSA, c_int32(of_right))
        self._attribute(TRANSB, c_int32(of_left))
        self._attribute(EPILOGUE, c_uint32(product.epilogue))
        if product.aux is not None:
            self._attribute(AUX_LD, c_int64(product.aux.stride(0)))
        self._a, self._b, self._d = (_layout(each) for each in (product.right, product.left, product.out))
        self._point(product)
        self.algorithms = self._heuristics(product.alignment)

    def _attribute(self, number: int, value: Any) -> None:
        _set("cublasLtMatmulDescSetAttribute", self._operation, number, value)

    def _point(self, product: Gemm) -> None:
        """Set the pointers of the epilogue; heuristics see from them how they are aligned."""
        for number, pointer, tensor in (
            (BIAS_POINTER, self._bias, product.bias),
            (AUX_POINTER, self._aux, product.aux),
        ):
            if tensor is not None:
                pointer.value = tensor.data_ptr()
                self._attribute(number, pointer)

    def _heuristics(self, alignment: int) -> list[_LibraryAlgorithm]:
        """Algorithms, the one that should be fastest first; none where the library has none for it."""
        preference, found, count = c_void_p(), (_Heuristic * CANDIDATES)(), c_int()
        _call("cublasLtMatmulPreferenceCreate", byref(preference))
        values = ((MAX_WORKSPACE, c_uint64(WORKSPACE_BYTES)), (REDUCTION_SCHEMES, c_uint32(COMPUTE_TYPE_SCHEME)))
        for number, value in (*values, *((number, c_uint32(alignment)) for number in ALIGNMENTS)):
            _set("cublasLtMatmulPreferenceSetAttribute", preference, number, value)
        layouts = (self._a, self._b, self._d, self._d)
        status = library().cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._operation, *layouts, preference, CANDIDATES, found, byref(count)
        )
        _call("cublasLtMatmulPreferenceDestroy", preference)
        if status not in (0, NOT_SUPPORTED):
            raise CublasLtError(f"cublasLtMatmulAlgoGetHeuristic: {STATUS.get(status, status)}")
        return [each.algorithm for each in found[: count.value] if each.state == 0]

    def multiply(self, product: Gemm, algorithm: _LibraryAlgorithm) -> None:
        """Launch the product on the current stream.

        Raises:
            CublasLtError: the library refused it.
        """
        self._point(product)
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        workspace, out = _workspace(self._device, stream), product.out.data_ptr()
        status = library().cublasLtMatmul(
            *(self._handle, self._operation, _ONE, product.right.data_ptr(), self._a, product.left.data_ptr(), self._b),
            *(_ZERO, out, self._d, out, self._d, algorithm),
            *(workspace.data_ptr(), WORKSPACE_BYTES, stream),
        )
        if status:
            raise CublasLtError(f"cublasLtMatmul: {STATUS.get(status, status)}")


def _layout(x_RC: Tensor) -> c_void_p:
    """Column-major, a row-major matrix is its transpose."""
    rows, columns = x_RC.shape
    sizes = (c_uint64(columns), c_uint64(rows), c_int64(x_RC.stride(0)))
    _call("cublasLtMatrixLayoutCreate", byref(made := c_void_p()), DATA_TYPES[x_RC.dtype], *sizes)
    return made


Way = Callable[[Gemm], object]
_ways: dict[tuple[Hashable, ...], Way] = {}


def _plain(product: Gemm) -> object:
    return product.plain()


def multiply(product: Gemm, *, tuned: bool) -> None:
    """Compute a product on the current stream: by the library, or where it has no algorithm for it by PyTorch.

    Args:
        tuned: whether a kind of product that comes for the first time has the library's algorithms timed, and
            PyTorch's operators; the fastest is kept. Otherwise it is the one that the library's heuristics name first.
            A CUDA graph that is captured cannot wait for times: a kind that was timed before has its fastest there,
            another the first.

    Raises:
        CublasLtError: the library refused what its heuristics had found.
    """
    device = product.out.device.index
    with _lock, nullcontext() if torch.cuda.current_device() == device else torch.cuda.device(device):
        _chosen(product, tuned=tuned)(product)


def _chosen(product: Gemm, *, tuned: bool) -> Way:
    kind = (*product.kind, tuned)
    if (way := _ways.get(kind)) is None:
        if tuned and torch.cuda.is_current_stream_capturing():
            return _chosen(product, tuned=False)
        way = _ways[kind] = _way(product, tuned=tuned)
    return way


def library_ways(product: Gemm) -> list[Way]:
    """The library's algorithms for products of this kind, the one that should be fastest first.

    Raises:
        CublasLtError: it has none.
    """
    if product.alignment < LEAST_ALIGNMENT:
        raise CublasLtError(f"addresses are multiples of {product.alignment} bytes alone")
    descriptions = _Descriptions(product)
    if not descriptions.algorithms:
        raise CublasLtError("no algorithm")
    return [partial(descriptions.multiply, algorithm=each) for each in descriptions.algorithms]


def _way(product: Gemm, *, tuned: bool) -> Way:
    try:
        ways = library_ways(product)
    except CublasLtError as error:
        what = f"{product.epilogue.name} of {' by '.join(str(size) for size in product.out.shape)}"
        sys.stderr.write(f"cuBLASLt: {what}: {error}; by PyTorch's operators instead\n")
        return _plain
    return fastest([*ways, _plain], product) if tuned else ways[0]


def fastest(ways: Sequence[Way], product: Gemm) -> Way:
    """The way whose median time over the rounds is least.

    One that the library refuses is left out, as is one whose results are not PyTorch's but for rounding.

    Before the first event each way is called once, untimed: the device computes while the host launches the calls that
    are timed. Bias that remains: a product that the device computes in less time than the host needs to launch it has
    the host's time, and calls through ctypes take longer than PyTorch's own, which is then kept too often.
    """
    able: list[Way] = []
    flags = torch.backends.cuda.matmul
    reduced = flags.allow_bf16_reduced_precision_reduction, flags.allow_fp16_reduced_precision_reduction
    flags.allow_bf16_reduced_precision_reduction = flags.allow_fp16_reduced_precision_reduction = False
    product.plain()
    flags.allow_bf16_reduced_precision_reduction, flags.allow_fp16_reduced_precision_reduction = reduced
    right = _sampled(product)
    bounds = _bounds(product, right)
    comparable = _agree(right, right, bounds)  # not where factors overflow
    for way in ways:
        for result in product.results:
            result.fill_(torch.nan)
        try:
            way(product)
        except CublasLtError:
            continue
        if way is _plain or not comparable or _agree(_sampled(product), right, bounds):
            able.append(way)
    times: list[list[float]] = [[] for _ in able]
    for _ in range(ROUNDS):
        for way, of_way in zip(able, times, strict=True):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            way(product)
            start.record()
            for _ in range(CALLS):
                way(product)
            end.record()
            end.synchronize()
            of_way.append(start.elapsed_time(end))
    medians = [statistics.median(of_way) for of_way in times]
    return able[medians.index(min(medians))]


def _rows(product: Gemm) -> Tensor:
    """Numbers of the rows whose results are compared: at most `SAMPLED_ROWS`, so that it needs little memory."""
    rows = product.out.shape[0]
    return torch.linspace(0, rows - 1, min(rows, SAMPLED_ROWS), device=product.out.device).long()


def _sampled(product: Gemm) -> list[Tensor]:
    """Some rows of each result, in fp32; BGRADB's bias has one for each row of out."""
    rows = _rows(product)
    return [result[rows].float() for result in product.results]


def _agree(found: list[Tensor], right: list[Tensor], bounds: list[Tensor]) -> bool:
    """Whether no result is off by more than its bound; NaN is."""
    return not any(bool((~((a - b).abs() <= bound)).any()) for a, b, bound in zip(found, right, bounds, strict=True))


def _bounds(product: Gemm, right: list[Tensor]) -> list[Tensor]:
    """By how much each of `_sampled` may be off from `right`, PyTorch's, whose sums are in fp32.

    Numbers are rounded by u of them, 2^-8 in bf16. Products of a row l of left and a column r of right, K long, add up
    to |l| |r| at most. Two ways are apart by
        2 u |result|                both are rounded
        K 2^-25 |l| |r|             both sums, to which tensor cores add 8 products or more at a time
        2^-10 |l| |r|               in fp32, whose factors PyTorch may round to TF32
        (2 u + 2^-10) |before|      GELU of rounded numbers or of sums; a GPU's tanh
        (2 u + 2^-7) |l| |r|        its gradient, likewise: kernels/linear_epilogues.py's self-check
        K 2^-23 sum of |l|          BGRADB's sum of a row
    """
    rows, (of_left, of_right) = _rows(product), product.transposed
    left = product.left[:, rows].t().float() if of_left else product.left[rows].float()
    depth, unit = left.shape[1], torch.finfo(product.out.dtype).eps / 2
    norms = torch.linalg.vector_norm(product.right, dim=1 if of_right else 0, dtype=torch.float32)
    most = left.norm(dim=1)[:, None] * norms
    factor = depth * 2.0**-25 + (2.0**-10 if product.out.dtype == torch.float32 else 0.0)
    if product.epilogue is Epilogue.DGELU:
        factor += 2 * unit + 2.0**-7
    bounds = [2 * unit * each.abs() for each in right]
    bounds[0] += 1.25 * factor * most  # GELU and its gradient pass on 1.13 at most
    if product.epilogue in (Epilogue.GELU_AUX, Epilogue.GELU_AUX_BIAS):
        bounds[0] += (2 * unit + 2.0**-10) * right[1].abs()
        bounds[1] += factor * most
    elif product.epilogue is Epilogue.BGRADB:
        bounds[1] += depth * 2.0**-23 * left.abs().sum(1)
    return bounds
