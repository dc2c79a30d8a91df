"""The rank: the only part of the suite with torch. Measuring never sees the expected answer."""
