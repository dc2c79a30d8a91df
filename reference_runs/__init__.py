"""Published facts: recorded training runs and tables, with units and sources. No torch."""
