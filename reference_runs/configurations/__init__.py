"""Training configurations of other software: what each key means of model, accelerators, layout and batch."""
