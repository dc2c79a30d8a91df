"""GPT-2's training script optimised one step at a time, each step predicted and measured."""
