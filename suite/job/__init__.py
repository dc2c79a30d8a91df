"""The input of a rank, and the events that it reports."""
