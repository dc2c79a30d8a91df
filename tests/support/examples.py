"""How many examples of hypothesis are tried: a third by default, and all by `nox -s rare`."""

from __future__ import annotations

from hypothesis import settings

ALL, USUAL = 60, 20  # of a test that does not say


def register() -> None:
    """Load the usual profile; --hypothesis-profile=all is the other."""
    usual = settings(derandomize=True, deadline=None, max_examples=USUAL, print_blob=True)
    settings.register_profile("usual", usual)
    settings.register_profile("all", usual, max_examples=ALL)
    settings.load_profile("usual")


def examples(most: int) -> settings:
    """Settings of a test that tries `most` examples in `nox -s rare`."""
    return settings(max_examples=-(-most * settings().max_examples // ALL))
