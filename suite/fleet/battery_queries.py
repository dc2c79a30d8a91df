"""Questions to the columnar store of batteries: the last verdict of each node, the history of one, and outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from suite.fleet.battery_store import BATTERIES, FLEETS, database, empty_columns, parts, usable
from suite.fleet.verdicts import ACCEPTED, BAD, NOT_RUN
from suite.metrics.modified_z import FACTOR, LIMIT, SHOWN_FROM

GROUPS = ("rack", "firmware")


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The last verdict of a node, or that of one time.

    Args:
        node: its hash, as in the records of batteries; its name where it never had one.
        name, rack: as the newest fleet knew them; empty where none did.
        time: when the verdict was said, in seconds since 1970.
        since: since when it has been bad without a break; None where it is not, or in a history.
    """

    node: str
    name: str
    rack: str
    verdict: str
    part: str
    evidence: str
    time: float
    battery: str
    firmware: str = ""
    since: float | None = None


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of a node's newest battery that stands out from its siblings in a group.

    Args:
        group: "rack" or "firmware", and `of` which one.
        siblings: nodes of the group with the same hardware, device and ranks, this one too; `median` is theirs.
    """

    node: str
    name: str
    figure: str
    value: float
    unit: str
    group: str
    of: str
    siblings: int
    median: float
    z: float


class FigureOverTime(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of one battery, over the median of its siblings' newest ones: same hardware, device and ranks."""

    node: str
    time: float
    figure: str
    ratio: float


class FleetSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of a question; None: all.

    Args:
        node: its name, or its hash.
        rack: as Slurm calls the switch.
        part: words of the part at fault.
        since: seconds since 1970 of the verdict.
    """

    node: str | None = None
    rack: str | None = None
    part: str | None = None
    since: float | None = None

    def conditions(self) -> tuple[str, list[object]]:
        """For SQL, after WHERE."""
        given = {
            "? IN (node, name)": self.node,
            "rack = ?": self.rack,
            "contains(lower(part), lower(?))": self.part,
            "time >= ?": self.since,
        }
        asked = {words: value for words, value in given.items() if value is not None}
        return " AND ".join(asked) or "true", list(asked.values())


_BAD_WORDS = ", ".join(f"'{word}'" for word in BAD)
_BATTERY_EVENTS = "SELECT node, finished AS time, verdict, part, evidence, id AS battery, firmware FROM {}"
# A battery's id is TIME__NODE__ID
_VIEWS = f"""
CREATE TEMP TABLE fleet_rows AS
    SELECT name, finished, verdict, part, evidence, rack, battery, split_part(battery, '__', 2) AS node FROM fleets;
CREATE TEMP TABLE names AS
    SELECT node, arg_max(name, finished) AS name, arg_max(rack, finished) FILTER (rack <> '') AS rack
    FROM fleet_rows WHERE node <> '' GROUP BY node;
CREATE TEMP TABLE hashes AS SELECT name, arg_max(node, finished) AS node FROM fleet_rows WHERE node <> '' GROUP BY name;
CREATE TEMP TABLE fleet_events AS
    SELECT coalesce(hashes.node, fleet_rows.name) AS node, finished AS time, verdict, part, evidence, battery,
        '' AS firmware
    FROM fleet_rows LEFT JOIN hashes USING (name) WHERE verdict <> '{NOT_RUN}';
CREATE TEMP VIEW events AS {_BATTERY_EVENTS.format("batteries")} UNION ALL SELECT * FROM fleet_events;
"""
_NEWEST = f"""
WITH good AS (SELECT node, max(time) AS good FROM events WHERE verdict = '{ACCEPTED}' GROUP BY node),
bad AS (
    SELECT events.node, min(time) AS since FROM events LEFT JOIN good USING (node)
    WHERE verdict IN ({_BAD_WORDS}) AND time > coalesce(good, -1) GROUP BY events.node
),
last AS (
    SELECT node, max(time) AS time, arg_max(verdict, time) AS verdict, arg_max(part, time) AS part,
        arg_max(evidence, time) AS evidence, arg_max(battery, time) AS battery,
        arg_max(firmware, time) FILTER (firmware <> '') AS firmware
    FROM events GROUP BY node
)
SELECT last.node AS node, coalesce(name, CASE WHEN contains(battery, '__') THEN '' ELSE last.node END) AS name,
    coalesce(rack, '') AS rack, verdict, part, evidence, time, battery, coalesce(firmware, '') AS firmware,
    CASE WHEN verdict IN ({_BAD_WORDS}) THEN since END AS since
FROM last LEFT JOIN names USING (node) LEFT JOIN bad USING (node)
"""
_OUTLIERS = """
WITH newest AS (SELECT node, max(finished) AS finished FROM batteries GROUP BY node),
figures AS (
    SELECT DISTINCT node, name, rack, firmware, siblings, unnest(figures) AS figure
    FROM batteries SEMI JOIN newest USING (node, finished) LEFT JOIN names USING (node)
),
grouped AS (
    SELECT node, coalesce(name, '') AS name, figure.name AS figure, figure.value AS value, figure.unit AS unit,
        siblings, unnest([{'group': 'rack', 'of': coalesce(rack, '')}, {'group': 'firmware', 'of': firmware}]) AS kind
    FROM figures
),
known AS (SELECT * FROM grouped WHERE kind.of <> ''),
centres AS (
    SELECT kind, siblings, figure, count(*) AS nodes, median(value) AS median, mad(value) AS deviation
    FROM known GROUP BY ALL
)
SELECT node, name, figure, value, unit, kind."group" AS "group", kind.of AS "of", nodes AS siblings, median,
    $factor * (value - median) / deviation AS z
FROM known JOIN centres USING (kind, siblings, figure)
WHERE nodes >= $least AND deviation > 0 AND abs(z) >= $limit
ORDER BY abs(z) DESC, node, figure
"""

_OVER_TIME = """
WITH newest AS (SELECT node, max(finished) AS finished FROM batteries GROUP BY node),
centres AS (
    SELECT siblings, figure.name AS figure, median(figure.value) AS median
    FROM (SELECT siblings, unnest(figures) AS figure FROM batteries SEMI JOIN newest USING (node, finished))
    GROUP BY ALL
),
own AS (
    SELECT DISTINCT node, finished AS time, siblings, unnest(figures) AS measured
    FROM batteries WHERE node IN (SELECT unnest(?))
)
SELECT node, time, figure, measured.value / median AS ratio
FROM own JOIN centres ON own.siblings = centres.siblings AND own.measured.name = centres.figure
WHERE median <> 0 ORDER BY node, figure, time
"""


class FleetStore:
    """The store, opened for questions; it takes in nothing.

    Raises:
        InputError: DuckDB is not installed, or a file of the store is damaged; every question may find that too.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._connection: Any = database()
        with usable(store):
            for kind in (BATTERIES, FLEETS):
                files = parts(store, kind)
                if files:
                    self._connection.read_parquet(files).create_view(kind)
                else:
                    self._connection.execute(f"CREATE TEMP TABLE {kind} ({empty_columns(kind)})")
            self._connection.execute(_VIEWS)

    def nodes(self, wanted: FleetSelection) -> list[NodeVerdict]:
        """The last verdict of every node that is meant, by name."""
        where, values = wanted.conditions()
        return self._asked(f"SELECT * FROM ({_NEWEST}) WHERE {where} ORDER BY name, node", values, NodeVerdict)

    def history(self, wanted: FleetSelection) -> list[NodeVerdict]:
        """Every verdict of the node that is meant, newest first."""
        with usable(self._store):
            found = self._connection.execute("SELECT node FROM names WHERE name = ?", [wanted.node]).fetchall()
        nodes = [row[0] for row in found] or [str(wanted.node)]
        files = parts(self._store, BATTERIES, nodes)  # few, of which few row groups are read
        own = f"{_BATTERY_EVENTS.format('read_parquet(?)')} UNION ALL" if files else ""
        where, values = msgspec.structs.replace(wanted, node=None).conditions()
        marks = ", ".join("?" * len(nodes))
        named = f"""
            SELECT DISTINCT events.node AS node, coalesce(name, '') AS name, coalesce(rack, '') AS rack, verdict, part,
                evidence, time, battery, firmware, NULL AS since
            FROM ({own} SELECT * FROM fleet_events) AS events LEFT JOIN names USING (node)
            WHERE events.node IN ({marks})
        """
        query = f"SELECT * FROM ({named}) WHERE {where} ORDER BY time DESC"
        return self._asked(query, [*([files] if files else []), *nodes, *values], NodeVerdict)

    def batteries(self) -> int:
        """How many batteries the store has."""
        with usable(self._store):
            return int(self._connection.execute("SELECT count(DISTINCT id) FROM batteries").fetchone()[0])

    def outliers(self) -> list[Outlier]:
        """Figures of newest batteries whose modified z in their rack or firmware is 3.5 or more, furthest first.

        z as `suite.metrics.modified_z` defines it, among all nodes of the group with the same hardware, device and
        ranks: this one too, and three others at least.
        """
        values = {"factor": FACTOR, "least": SHOWN_FROM + 1, "limit": LIMIT}
        found = self._asked(_OUTLIERS, values, Outlier)
        return [outlier for outlier in found if math.isfinite(outlier.z)]

    def over_time(self, nodes: Sequence[str]) -> list[FigureOverTime]:
        """Every figure of all batteries of these nodes, given by their hashes, beside their siblings."""
        return self._asked(_OVER_TIME, [list(nodes)], FigureOverTime)

    def _asked(self, query: str, values: object, kind: Any) -> list[Any]:
        with usable(self._store):
            result = self._connection.execute(query, values)
            titles = [column[0] for column in result.description]
            rows = result.fetchall()
        return [kind(**dict(zip(titles, row, strict=True))) for row in rows]
