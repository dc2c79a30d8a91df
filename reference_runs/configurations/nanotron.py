"""Files of nanotron.

Source: nanotron 0.4, config/config.py, parallelism_config.py.
"""

from __future__ import annotations

from reference_runs.configurations.configuration import Framework, Keys, TrainingConfiguration, chosen
from reference_runs.layout import Recomputation
from reference_runs.run import Precision

_LLAMA = {"tie_word_embeddings": False}


def nanotron(keys: Keys) -> TrainingConfiguration:
    """Training of nanotron.

    Raises:
        InputError: a value that is none of the key's.
    """
    tensors, stages, data, experts = (
        keys.size(f"parallelism.{name}") for name in ("tp", "pp", "dp", "expert_parallel_size")
    )
    contexts = keys.size("parallelism.context_parallel_size")
    prefix = "model.model_config."
    shape = {name.removeprefix(prefix): value for name, value in keys.values.items() if name.startswith(prefix)}
    stage = keys.count("optimizer.zero_stage", least=0) or 0
    again = keys.flag("parallelism.recompute_layer")
    dtype = {"bfloat16": Precision.BF16, "float16": Precision.FP16, "float32": Precision.FP32}
    return TrainingConfiguration(
        Framework.NANOTRON,
        "nanotron",
        shape={**_LLAMA, **shape, "model_type": "llama"} if "hidden_size" in shape else None,
        ranks=data * tensors * stages * contexts,
        data_parallel=data,
        tensor_parallel=tensors,
        sequence_parallel=tensors > 1 and keys.text("parallelism.tp_mode").upper() == "REDUCE_SCATTER",
        context_parallel=contexts,
        pipeline_stages=stages,
        expert_parallel=experts,
        zero_stage=chosen(str(stage), {"0": 0, "1": 1}, "optimizer.zero_stage"),
        reduce_scatter=stage == 1,
        recomputation=Recomputation.FULL if again else Recomputation.NONE,
        micro_batch=keys.size("tokens.micro_batch_size"),
        accumulation=keys.size("tokens.batch_accumulation_per_replica"),
        sequence=keys.count("tokens.sequence_length"),
        precision=chosen(keys.text("model.dtype") or "bfloat16", dtype, "model.dtype"),
    )
