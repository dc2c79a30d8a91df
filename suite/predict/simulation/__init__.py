"""What PyTorch does in a step: operators, tensors kept, collectives, schedule, seconds."""
