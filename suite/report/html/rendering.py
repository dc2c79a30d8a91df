"""A page as one file: a template with styles, scripts and pictures inside, and nothing from outside."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from suite.paths import program
from suite.report.html.badges import mark, tone
from suite.report.html.plot import Plot

if TYPE_CHECKING:
    import jinja2

MOST_LETTERS = 5000  # of one text
_DIRECTIONS = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F)}
HERE = Path(__file__).parent


def _template(name: str) -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        finalize=shown_text,
    )
    return environment.get_template(name)


def shown_text(value: Any) -> Any:
    """Text as the page shows it: no record's text fills the page, or turns the text around it.

    Controls of the writing direction are shown as their codes; letters of right-to-left scripts stay.
    """
    if not isinstance(value, str) or hasattr(value, "__html__"):  # numbers, and what is HTML
        return value
    if len(value) > MOST_LETTERS:
        value = f"{value[:MOST_LETTERS]} ... ({len(value):,} letters)"
    return value.translate(_DIRECTIONS)


def rendered(plots: list[Plot], *, template: str = "page.html.jinja", **context: Any) -> str:
    """The text of a page with its pictures, scripts and styles inside.

    Args:
        template: file in this directory.
        context: what it names besides.
    """
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    scripts = {"plotly": get_plotlyjs(), "script": (HERE / "page.js").read_text(encoding="utf-8")}
    hashes = (hashlib.sha256(script.encode()).digest() for script in scripts.values())
    return _template(template).render(
        # S704: JSON without any sign that ends a script, the project's own files, and digests; all else is escaped
        plots=Markup(in_script(plots)),  # noqa: S704
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),  # noqa: S704
        script_hashes=Markup(" ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)),  # noqa: S704
        mark=mark,
        tone=tone,
        program=program(),
        **{name: Markup(script) for name, script in scripts.items()},  # noqa: S704
        **context,
    )


def in_script(plots: list[Plot]) -> str:
    """The plots as JSON that no text in it can end the script element of."""
    content = {
        plot.id: {
            "traces": plot.traces,
            "layout": plot.layout,
            "columns": plot.columns,
            "rows": plot.rows,
            "height": plot.height,
        }
        for plot in plots
    }
    text = msgspec.json.encode(content).decode()
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
