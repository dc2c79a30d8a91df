"""What a fresh GPU node can show in an hour: parts that run one after the other, bounded, each kept at once."""
