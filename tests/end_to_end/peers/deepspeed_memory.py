"""A rank of DeepSpeed's ZeRO on CPUs that counts what a step of a small Llama holds: `python -m ... KEYS`.

Prints bytes that live between steps and at most in forward passes, backward passes and the update. What
lives are storages that an operator returned or that the garbage collector knows. KEYS is JSON: ranks, rank, port,
micro_batches, samples, checkpointing, model, zero, accumulation.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WARM_UP = 2  # steps: moments, and ZeRO-3's order of modules


class LiveBytes(TorchDispatchMode):
    """Bytes of storages that live, and the most since `peak` was set."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.device.type == "meta":
            return
        key, size = storage._cdata, storage.nbytes()
        if key not in self._sizes:
            weakref.finalize(storage, self._free, key)
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return out

    def most(self, call: Callable[[], Any]) -> int:
        self.peak = self.now
        call()
        return self.peak


def _engine(keys: dict[str, Any]) -> Any:
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(keys["port"]),
        "RANK": str(keys["rank"]),
        "LOCAL_RANK": str(keys["rank"]),
        "WORLD_SIZE": str(keys["ranks"]),
    }
    import deepspeed
    from transformers import LlamaConfig, LlamaForCausalLM

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**keys["model"]))
    if keys["checkpointing"]:
        model.gradient_checkpointing_enable()
    model.train()
    decays = [[each for each in model.parameters() if (each.ndim > 1) is matrix] for matrix in (True, False)]
    optimizer = torch.optim.AdamW([{"params": each} for each in decays], lr=1e-4, fused=True)
    config = {
        "train_micro_batch_size_per_gpu": keys["samples"],
        "gradient_accumulation_steps": keys["micro_batches"],
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": keys["zero"],
    }
    if keys["accumulation"]:
        config["data_types"] = {"grad_accum_dtype": keys["accumulation"]}
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def main() -> None:
    keys = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    engine, model = _engine(keys), keys["model"]
    tokens = torch.randint(0, model["vocab_size"], (keys["samples"], model["max_position_embeddings"]))
    losses: list[torch.Tensor] = []

    def forward() -> None:
        losses.append(engine(input_ids=tokens, labels=tokens, use_cache=False).loss)

    def backward() -> None:
        engine.backward(losses.pop())

    for _ in range(WARM_UP * keys["micro_batches"]):
        forward()
        backward()
        engine.step()
    gc.collect()
    live = LiveBytes()
    for each in gc.get_objects():
        if type(each) in (torch.Tensor, torch.nn.Parameter):
            live.add(each)
    held = live.now
    with live:
        passes = [[live.most(call) for call in (forward, backward, engine.step)] for _ in range(keys["micro_batches"])]
    print(json.dumps([held, *map(max, zip(*passes, strict=True))]))


if __name__ == "__main__":
    main()
