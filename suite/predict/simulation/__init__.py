"""PyTorch's step: operators, tensors kept, collectives, schedule, seconds."""
