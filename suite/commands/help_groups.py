"""Options of --help in groups, as plain text: each under the heading that its `rich_help_panel` names."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

OTHERS = "Options"  # the heading of those without a group; they come first


class GroupedCommand(TyperCommand):
    """A command whose --help lists options by group, in the order in which the groups first occur."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options without a group, and each group."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], OTHERS: []}
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx)
            if line is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            heading = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or OTHERS
            sections.setdefault(heading, []).append(line)
        for heading, lines in sections.items():
            if lines:
                with formatter.section(heading):
                    formatter.write_dl(lines)
