"""Breaks one expression at a time, and sees whether the module's own tests notice."""
