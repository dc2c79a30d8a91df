"""Options of `--help` under the headings that they name (`rich_help_panel`), in plain text."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

ARGUMENTS, OTHERS = "Arguments", "Options"


class GroupedCommand(TyperCommand):
    """A command whose help has a heading for each group of options; those without one come last.

    A class of our own, as typer has no other place for it: its panels are rich's, which break words at 80 columns.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, group by group, in the order in which the command has them."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                usual = ARGUMENTS if parameter.param_type_name == "argument" else OTHERS
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for title in sorted(groups, key=lambda title: (title != ARGUMENTS, title == OTHERS)):
            with formatter.section(title):
                formatter.write_dl(groups[title])
