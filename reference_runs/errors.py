"""The one exception family for bad input: what, allowed, got, where."""

from __future__ import annotations


class InputError(Exception):
    """A wrong name, file, layout, corpus, device or permission, as one line.

    The line reads `where: what; got GOT, allowed: ALLOWED`, with the parts that apply; `where` can be asked for alone.
    """

    def __init__(
        self,
        what: str,
        *,
        allowed: str | None = None,
        got: object | None = None,
        where: str | None = None,
    ) -> None:
        self.where = where
        line = what if where is None else f"{where}: {what}"
        parts = []
        if got is not None:
            parts.append(f"got {got}")
        if allowed is not None:
            parts.append(f"allowed: {allowed}")
        super().__init__(f"{line}; {', '.join(parts)}" if parts else line)
