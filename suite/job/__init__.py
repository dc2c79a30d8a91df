"""All that a rank is told, and the events that it reports."""
