"""Predictions against published tables and textbook examples."""
