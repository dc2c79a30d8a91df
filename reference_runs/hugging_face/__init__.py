"""Configurations of Hugging Face's transformers, read into the facts of a run file."""
