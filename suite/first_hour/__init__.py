"""A fresh GPU node's first hour: parts that run one after the other in bounded time, each kept at once."""
