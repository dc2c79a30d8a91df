"""Times what a machine profile holds: products, operators, collectives, host calls, reference steps."""
