"""Trains a small model with a framework on CPUs, with a slow-down or without: the log that the framework itself writes.

    python small_runs.py transformers loading FOLDER

The log goes to standard output and error; with TRACED=1 in the environment, which disturbs its times, a trace of
PyTorch's profiler goes to FOLDER. With several ranks, as torchrun's variables say, DeepSpeed averages over gloo.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

VOCABULARY, WIDTH, LAYERS, HEADS, SEQUENCE = 512, 256, 3, 4, 64
MICRO_BATCH, SAVED_EVERY = 8, 10
STEPS = 12 if "TRACED" in os.environ else 40
LOADING_SECONDS, HICCUP_SECONDS, LATE_SECONDS, SAVING_SECONDS = 0.02, 0.5, 0.1, 1.0
RANK = int(os.environ.get("RANK", "0"))
FAULTS = ("none", "loading", "hiccups", "saving", "recomputing", "tiny", "reducing", "late")


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random tokens; some take long to load."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        draw = torch.Generator().manual_seed(RANK)
        self.tokens = torch.randint(VOCABULARY, (STEPS * MICRO_BATCH, SEQUENCE + 1), generator=draw)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.fault == "loading":
            time.sleep(LOADING_SECONDS)
        if self.fault == "hiccups" and index % (7 * MICRO_BATCH) == 0:
            time.sleep(HICCUP_SECONDS)
        return {"input_ids": self.tokens[index, :-1], "labels": self.tokens[index, :-1]}


class Rows(Tokens):
    """The same as litgpt reads them: tokens and the next one in a row."""

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
        super().__getitem__(index)
        return self.tokens[index]


class Block(nn.Module):
    """A layer of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """The layer's output, of its input's shape."""
        qkv = self.qkv(self.attention_norm(x_BTD)).unflatten(-1, (3, HEADS, -1)).movedim(2, 0).transpose(2, 3)
        mixed = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x_BTD = x_BTD + self.out(mixed.transpose(1, 2).flatten(2))
        return x_BTD + self.down(nn.functional.gelu(self.up(self.norm(x_BTD))))


class Decoder(nn.Module):
    """A small decoder; `late`: its last rank sleeps in each forward pass."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.embedding, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        x_BTD = self.embedding(input_ids)
        if self.fault == "late" and RANK == 1:
            time.sleep(LATE_SECONDS)
        for block in self.blocks:
            x_BTD = checkpoint(block, x_BTD, use_reentrant=False) if self.fault == "recomputing" else block(x_BTD)
        return nn.functional.cross_entropy(self.head(x_BTD).flatten(0, 1), labels.flatten())


def micro_batches(fault: str) -> tuple[int, int]:
    """Samples of a micro-batch, and micro-batches of a step."""
    return (1, MICRO_BATCH) if fault == "tiny" else (MICRO_BATCH, 1)


def loader(fault: str) -> DataLoader[dict[str, torch.Tensor]]:
    """Micro-batches."""
    return DataLoader(Tokens(fault), batch_size=micro_batches(fault)[0])


def slow_storage() -> None:
    """Makes `torch.save` take long."""
    save = torch.save

    def slow(*given: Any, **options: Any) -> None:
        time.sleep(SAVING_SECONDS)
        save(*given, **options)

    torch.save = slow


@contextmanager
def recorder(folder: Path) -> Iterator[Callable[[], None]]:
    """A function that ends a step; with TRACED set a profiler records three steps, which disturbs a log's times."""
    if "TRACED" not in os.environ:
        yield lambda: None
        return

    def finished(recording: profile) -> None:
        recording.add_metadata_json("distributedInfo", f'{{"rank": {RANK}}}')
        recording.export_chrome_trace(str(folder / f"trace_rank{RANK}.json.gz"))

    order = schedule(wait=4, warmup=2, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=order, on_trace_ready=finished) as recording:
        yield recording.step


def transformers(fault: str, folder: Path) -> None:
    """The Trainer of transformers with a GPT-2 of its own."""
    import transformers as hf

    class Recording(hf.TrainerCallback):
        """Ends the profiler's steps."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            step()

    hf.logging.set_verbosity_info()
    sizes = {"vocab_size": VOCABULARY, "n_positions": SEQUENCE, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    micro_batch, accumulation = micro_batches(fault)
    arguments = hf.TrainingArguments(
        str(folder / "checkpoints"),
        max_steps=STEPS,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        gradient_checkpointing=fault == "recomputing",
        save_strategy="steps" if fault == "saving" else "no",
        save_steps=SAVED_EVERY,
        logging_steps=1,
        include_num_input_tokens_seen=True,
        use_cpu=True,
        report_to="none",
        dataloader_num_workers=0,
    )
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    with recorder(folder) as step:
        hf.Trainer(model, arguments, train_dataset=Tokens(fault), callbacks=[Recording()]).train()


def lightning(fault: str, folder: Path) -> None:
    """Lightning's Trainer, its progress bar and its profilers."""
    import lightning as li
    from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
    from lightning.pytorch.profilers import PyTorchProfiler, SimpleProfiler

    class Module(li.LightningModule):
        """Trains the decoder."""

        def __init__(self) -> None:
            super().__init__()
            self.decoder = Decoder(fault)

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            """The loss."""
            return self.decoder(**batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            """AdamW."""
            return torch.optim.AdamW(self.parameters())

    callbacks: list[Any] = [TQDMProgressBar(refresh_rate=1)]
    if fault == "saving":
        callbacks.append(ModelCheckpoint(folder, every_n_train_steps=SAVED_EVERY, save_top_k=-1))
    order = schedule(wait=4, warmup=2, active=3, repeat=1)
    recording = PyTorchProfiler(
        str(folder), "trace", schedule=order, activities=[ProfilerActivity.CPU], export_to_chrome=True
    )
    trainer = li.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        accumulate_grad_batches=micro_batches(fault)[1],
        callbacks=callbacks,
        enable_checkpointing=fault == "saving",
        logger=False,
        profiler=recording if "TRACED" in os.environ else SimpleProfiler(),
    )
    trainer.fit(Module(), loader(fault))


def deepspeed(fault: str, folder: Path) -> None:
    """DeepSpeed's engine, with the times that it prints of every step."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed as ds
    import deepspeed.comm.torch

    deepspeed.comm.torch.build_shm_op = lambda: None
    ds.utils.logging.set_log_level_from_string("info")
    micro_batch, accumulation = micro_batches(fault)
    config = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "steps_per_print": 1,
        "wall_clock_breakdown": True,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 0},
    }
    model = Decoder(fault)
    ds.init_distributed("gloo", auto_mpi_discovery=False)
    engine, *_ = ds.initialize(model=model, model_parameters=model.parameters(), config=config)
    with recorder(folder) as step:
        for number, batch in enumerate(loader(fault), 1):
            engine.backward(engine(**batch))
            if fault == "reducing":
                for parameter in model.parameters():
                    norm = parameter.grad.norm()
                    ds.comm.all_reduce(norm)
                    norm.item()
            engine.step()
            if number % accumulation == 0:
                step()
                if fault == "saving" and number // accumulation % SAVED_EVERY == 0:
                    engine.save_checkpoint(str(folder / "checkpoints"))


def litgpt(fault: str, folder: Path) -> None:
    """Pretraining of litgpt."""
    from litgpt import Config, pretrain
    from litgpt.args import EvalArgs, TrainArgs
    from litgpt.data import DataModule

    pretrain.save_hyperparameters = lambda *_: None

    class Data(DataModule):
        """Tokens and their targets in one row."""

        def connect(self, **_: Any) -> None:
            """Nothing to do."""

        def train_dataloader(self) -> DataLoader[Any]:
            """Rows of tokens."""
            return DataLoader(Rows(fault), batch_size=micro_batches(fault)[0])

        val_dataloader = train_dataloader

    config = Config(
        name="small",
        block_size=SEQUENCE,
        vocab_size=VOCABULARY,
        padded_vocab_size=VOCABULARY,
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=WIDTH,
        intermediate_size=4 * WIDTH,
    )
    micro_batch, _ = micro_batches(fault)
    train = TrainArgs(
        global_batch_size=MICRO_BATCH,
        micro_batch_size=micro_batch,
        log_interval=1,
        max_norm=1.0,
        max_tokens=STEPS * MICRO_BATCH * SEQUENCE,
        save_interval=SAVED_EVERY if fault == "saving" else None,
        lr_warmup_steps=2,
        min_lr=1e-5,
    )
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        pretrain.setup(
            "small",
            config,
            folder,
            "32-true",
            None,
            False,
            Data(),
            train,
            EvalArgs(interval=1000, max_iters=1, initial_validation=False, final_validation=False),
            devices=1,
            logger_name="csv",
        )
    recording.export_chrome_trace(str(folder / f"trace_rank{RANK}.json.gz"))


FRAMEWORKS: dict[str, Callable[[str, Path], None]] = {
    "transformers": transformers,
    "lightning": lightning,
    "deepspeed": deepspeed,
    "litgpt": litgpt,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if given.fault == "saving":
        slow_storage()
    FRAMEWORKS[given.framework](given.fault, given.folder)
