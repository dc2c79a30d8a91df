"""Small configurations of other software, written for the tests."""

from __future__ import annotations

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
[activation_checkpoint]
mode = "full"
"""
MEGATRON = """#!/bin/bash
TP=4
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py \\
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 --sequence-parallel \\
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 --swiglu \\
  --micro-batch-size 2 --global-batch-size 64 --bf16 --use-distributed-optimizer --recompute-granularity full
"""
BRIDGE = """
model:
  hf_model_id: meta-llama/Llama-3.2-1B
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  seq_length: 8192
train: {global_batch_size: 32, micro_batch_size: 1}
ddp: {use_distributed_optimizer: true}
mixed_precision: bf16_mixed
peft: {dim: 16}
"""
DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": True},
}
AXOLOTL = """
base_model: NousResearch/Llama-2-7b-hf
adapter: qlora
lora_r: 32
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
gradient_checkpointing: true
"""
