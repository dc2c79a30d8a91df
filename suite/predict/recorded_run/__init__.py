"""The figures of a published run."""
