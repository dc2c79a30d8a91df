"""Plain text of `--help`: an example a line, options under the headings that they name (`rich_help_panel`)."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

from typer.core import TyperCommand

ARGUMENTS, OTHERS = "Arguments", "Options"
_EXAMPLES = re.compile(r"Examples?: ")
_FORMER = (", --products",)  # names that options had: still read, no longer shown
_HYPHEN = "\u2011"  # where a line must not end


class GroupedCommand(TyperCommand):
    """A command whose help has a heading for each group of options; those without one come last.

    A class of our own, as typer has no other place for it: its panels are rich's, which break words at 80 columns, and
    the plain form breaks names at their hyphens and cuts the lines of a list of commands.
    """

    def get_help(self, ctx: Any) -> str:
        """The help, in which no name is broken at a hyphen."""
        return super().get_help(ctx).replace(_HYPHEN, "-")

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002  # of the class above: nothing is cut
        """The first sentence, whole."""
        paragraph = inspect.cleandoc(self.help or "").partition("\n\n")[0]
        return " ".join(paragraph.split()).partition(". ")[0].rstrip(".") + "."

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Options and arguments as the usage line has them; arguments in capitals, as texts call them."""
        return [_capitals(piece) for piece in super().collect_usage_pieces(ctx)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # of the class above
        """Write the paragraphs, of examples one a line."""
        for paragraph in inspect.cleandoc(self.help or "").split("\n\n"):
            formatter.write_paragraph()
            text = " ".join(paragraph.split())
            with formatter.indentation():
                if head := _EXAMPLES.match(text):
                    formatter.write_text(head[0].strip())
                    with formatter.indentation():
                        for example in text[head.end() :].split("; "):
                            formatter.write(_command(example, formatter.width, " " * formatter.current_indent))
                else:
                    formatter.write_text(text.replace("-", _HYPHEN))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, group by group, in the order in which the command has them."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                is_argument = parameter.param_type_name == "argument"
                term, text = record
                for name in _FORMER:
                    term = term.replace(name, "")
                shown = (_capitals(term) if is_argument else term, text.replace("-", _HYPHEN))
                usual = ARGUMENTS if is_argument else OTHERS
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(shown)
        for title in sorted(groups, key=lambda title: (title != ARGUMENTS, title == OTHERS)):
            with formatter.section(title):
                formatter.write_dl(groups[title])


def _command(example: str, width: int, indent: str) -> str:
    """A command line, on as many lines as it takes, which a shell reads as one."""
    lines = textwrap.wrap(
        example,
        width - 2,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return " \\\n".join(lines) + "\n"


def _capitals(metavar: str) -> str:
    """An argument as texts call it: RUN for "{run}"."""
    return metavar.translate({ord("{"): None, ord("}"): None}).upper()
