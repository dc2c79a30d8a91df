"""PyTorch's choices on a GPU, as torch 2.11 and 2.13 make them on simulated devices, and errors that ended a rank."""

from __future__ import annotations

from suite.machine.gpu import (
    H100,
    Gpu,
    SdpaBackend,
    cublas_workspace_bytes,
    cuda_error,
    cuda_errors,
    recorded_gpu,
    sdpa_backend,
)

OLDER = (2, 11)
WATCHDOG = (
    "[rank1]:[E1125 16:02:11.5 ProcessGroupNCCL.cpp:2093] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group "
    "watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered"
)
TERMINATED = (
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: "
    "CUDA error: an illegal memory access was encountered"
)


def test_attention_in_16_bit_is_cudnn_s_on_hopper_and_blackwell_and_flash_elsewhere() -> None:
    cases = {
        (H100, 64, 0.0): SdpaBackend.CUDNN,
        (H100, 80, 0.125): SdpaBackend.CUDNN,
        (H100, 256, 0.0): SdpaBackend.CUDNN,
        (H100, 64, 0.1): SdpaBackend.FLASH,
        (H100._replace(torch=OLDER), 64, 0.1): SdpaBackend.CUDNN,
        (H100, 44, 0.0): SdpaBackend.FLASH,
        (H100._replace(cudnn=91500), 64, 0.0): SdpaBackend.FLASH,
        (H100._replace(cudnn=91501), 64, 0.0): SdpaBackend.CUDNN,
        (H100._replace(capability=(10, 0)), 128, 0.0): SdpaBackend.CUDNN,
        (H100._replace(capability=(10, 0)), 160, 0.0): SdpaBackend.FLASH,
        (H100._replace(capability=(8, 0)), 64, 0.0): SdpaBackend.FLASH,
        (H100._replace(capability=(12, 0)), 64, 0.0): SdpaBackend.FLASH,
    }
    found = {case: sdpa_backend(case[0], half=True, head_dim=case[1], dropout=case[2]) for case in cases}
    assert found == cases
    fp32 = {sdpa_backend(gpu, half=False, head_dim=head_dim, dropout=dropout) for gpu, head_dim, dropout in cases}
    assert fp32 == {SdpaBackend.EFFICIENT}


def test_cublas_has_the_workspace_that_pytorch_or_its_variable_gives() -> None:
    kib = {
        H100: 32768,
        H100._replace(torch=OLDER): 32768,
        H100._replace(capability=(10, 0)): 32768,
        H100._replace(capability=(10, 0), torch=OLDER): 8320,
        H100._replace(capability=(8, 9)): 8320,
        H100._replace(workspace_config=":4096:2:16:8"): 8320,
        H100._replace(workspace_config=":16:8"): 128,
    }
    assert {gpu: cublas_workspace_bytes(gpu) / 1024 for gpu in kib} == kib


def test_a_recorded_environment_gives_its_gpu_back_and_an_older_one_an_h100() -> None:
    environment = {
        "torch": "2.11.0+cu130",
        "gpu_capability": "8.0",
        "gpu_processors": "108",
        "gpu_threads": "2048",
        "cudnn": "91002",
        "cublas_workspace_config": ":16:8",
    }
    assert recorded_gpu(environment) == Gpu((8, 0), 108, 2048, 91002, (2, 11), ":16:8")
    assert recorded_gpu({"torch": "2.9.0", "gpu": "NVIDIA H100 80GB HBM3"}) == H100


def test_each_rank_has_the_first_cuda_error_of_its_log() -> None:
    of_nccl = "NCCL error in: x.cpp:1, unhandled cuda error\nLast error:\nCuda failure 700 'an illegal memory access'"
    assert cuda_error(of_nccl) == "Cuda failure 700 'an illegal memory access'"
    assert cuda_error("CUDA driver error: device not ready") == "CUDA driver error: device not ready"
    assert cuda_error("CUDA out of memory") == ""
    others = "[rank1]: CUDA error: a later one", TERMINATED, "CUDA error: of nobody"
    assert cuda_errors("\n".join(["W1125 torch/distributed/run.py:803", WATCHDOG, *others])) == {
        1: "CUDA error: uncorrectable ECC error encountered",
        3: "CUDA error: an illegal memory access was encountered",
        None: "CUDA error: of nobody",
    }
