"""PyTorch's choices on a GPU, as torch 2.11 and 2.13 make them on simulated devices."""

from __future__ import annotations

import pytest

from suite.machine.gpu import H100, Gpu, SdpaBackend, cublas_workspace_bytes, recorded_gpu, sdpa_backend

OLDER = (2, 11)


@pytest.mark.parametrize(
    ("gpu", "head_dim", "dropout", "kernel"),
    [
        (H100, 64, 0.0, SdpaBackend.CUDNN),
        (H100, 80, 0.125, SdpaBackend.CUDNN),
        (H100, 256, 0.0, SdpaBackend.CUDNN),
        (H100, 64, 0.1, SdpaBackend.FLASH),
        (H100._replace(torch=OLDER), 64, 0.1, SdpaBackend.CUDNN),
        (H100, 44, 0.0, SdpaBackend.FLASH),
        (H100._replace(cudnn=91500), 64, 0.0, SdpaBackend.FLASH),
        (H100._replace(cudnn=91501), 64, 0.0, SdpaBackend.CUDNN),
        (H100._replace(capability=(10, 0)), 128, 0.0, SdpaBackend.CUDNN),
        (H100._replace(capability=(10, 0)), 160, 0.0, SdpaBackend.FLASH),
        (H100._replace(capability=(8, 0)), 64, 0.0, SdpaBackend.FLASH),
        (H100._replace(capability=(12, 0)), 64, 0.0, SdpaBackend.FLASH),
    ],
)
def test_attention_in_16_bit_is_cudnn_s_on_hopper_and_blackwell_and_flash_elsewhere(
    gpu: Gpu, head_dim: int, dropout: float, kernel: SdpaBackend
) -> None:
    assert sdpa_backend(gpu, half=True, head_dim=head_dim, dropout=dropout) is kernel
    assert sdpa_backend(gpu, half=False, head_dim=head_dim, dropout=dropout) is SdpaBackend.EFFICIENT


@pytest.mark.parametrize(
    ("gpu", "kib"),
    [
        (H100, 32768),
        (H100._replace(torch=OLDER), 32768),
        (H100._replace(capability=(10, 0)), 32768),
        (H100._replace(capability=(10, 0), torch=OLDER), 8320),
        (H100._replace(capability=(8, 9)), 8320),
        (H100._replace(workspace_config=":4096:2:16:8"), 8320),
        (H100._replace(workspace_config=":16:8"), 128),
    ],
)
def test_cublas_has_the_workspace_that_pytorch_or_its_variable_gives(gpu: Gpu, kib: int) -> None:
    assert cublas_workspace_bytes(gpu) == kib * 1024


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
