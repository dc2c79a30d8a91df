"""What a machine does: the only part of the suite with torch. Measuring never sees the expected answer."""
