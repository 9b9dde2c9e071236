"""The JSON of Grafana's dashboards, from integrations/grafana/dashboards.yml.

    python -m tests.unit.integrations.dashboards

writes it again. The form is Grafana's classic dashboard model (schemaVersion 36: Grafana 9 and later read it, and migrate it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator
from tests.unit.integrations.monitoring import ROOT

FOLDER = ROOT / "integrations/grafana"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLOURS = {
    "healthy": "green",
    "degraded": "yellow",
    "drain": "red",
    "could_not_check": "purple",
    "not_this_class": "dark-red",
    "stale": "blue",
    "silent": "text",
}
VERDICTS = ("healthy", "degraded", "drain", "could_not_check", "not_this_class")
LINKS = {"instance": ("goldnode-node", "instance"), "class": ("goldnode-class", "class")}


class Described(BaseModel):
    """A part of the description. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class DescribedPanel(Described):
    """A panel: what it shows, and how large it is."""

    title: str
    type: Literal["stat", "timeseries", "table"]
    size: tuple[int, int]
    query: str | None = None
    queries: dict[str, str] = Field(default_factory=dict)
    legend: str = ""
    unit: str | None = None
    stack: bool = False
    colours: Literal["state", "verdict", "bool"] | None = None
    text: Literal["auto", "name"] = "auto"
    columns: dict[str, str | None] = Field(default_factory=dict)
    matrix: tuple[str, str] | None = None
    value: str | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _has_queries(self) -> DescribedPanel:
        assert (self.query is None) != (not self.queries), f"{self.title}: query or queries"
        return self

    def targets(self) -> dict[str, str]:
        """Return the queries by their legend."""
        return self.queries or {self.legend: str(self.query)}


class DescribedRow(Described):
    """A row of panels."""

    title: str
    panels: list[DescribedPanel]


class DescribedVariable(Described):
    """A variable of a dashboard: its values are those of a query."""

    query: str
    all: bool = False


class DescribedDashboard(Described):
    """A dashboard."""

    uid: str
    title: str
    variables: dict[str, DescribedVariable]
    rows: list[DescribedRow]


class Description(Described):
    """All dashboards."""

    note: str
    dashboards: list[DescribedDashboard]


def described() -> Description:
    return Description.model_validate(yaml.safe_load((FOLDER / "dashboards.yml").read_text()))


def rendered() -> dict[Path, str]:
    """Return the JSON of each dashboard by its file."""
    found = described()
    return {FOLDER / f"{one.uid}.json": _text(dashboard(one, found)) for one in found.dashboards}


def _text(found: Mapping[str, Any]) -> str:
    """Return a dashboard as JSON with one line for each panel, so that a change is a line of a diff."""
    lines = []
    for key, value in found.items():
        if key == "panels":
            value = [json.dumps(panel, ensure_ascii=False) for panel in value]
            lines.append(f'"{key}": [\n  ' + ",\n  ".join(value) + "\n ]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def dashboard(one: DescribedDashboard, all_: Description) -> dict[str, Any]:
    return {
        "uid": one.uid,
        "title": one.title,
        "description": all_.note,
        "tags": ["goldnode"],
        "schemaVersion": 36,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "annotations": {"list": []},
        "links": [
            {
                "title": "goldnode",
                "type": "dashboards",
                "tags": ["goldnode"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }
        ],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                },
                *(_variable(name, variable) for name, variable in one.variables.items()),
            ]
        },
        "panels": _panels(one),
    }


def _variable(name: str, variable: DescribedVariable) -> dict[str, Any]:
    every = {
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": SOURCE,
        "query": variable.query,
        "refresh": 2,  # whenever the time range changes
        "sort": 1,
        **(every if variable.all else {"includeAll": False, "multi": False}),
    }


def _panels(one: DescribedDashboard) -> list[dict[str, Any]]:
    """Return the panels of a dashboard, placed from left to right, line by line."""
    found: list[dict[str, Any]] = []
    x = y = height = 0
    for row in one.rows:
        x, y, height = 0, y + height, 0
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        found.append({"id": len(found) + 1, "type": "row", "title": row.title, "gridPos": place, "collapsed": False, "panels": []})  # fmt: skip
        y += 1
        for panel in row.panels:
            wide, high = panel.size
            if x + wide > 24:
                x, y, height = 0, y + height, 0
            place = {"x": x, "y": y, "w": wide, "h": high}
            found.append({"id": len(found) + 1, **_panel(panel), "gridPos": place})
            x, height = x + wide, max(height, high)
    return found


def _panel(panel: DescribedPanel) -> dict[str, Any]:
    instant = panel.type != "timeseries"
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": SOURCE,
            "expr": " ".join(query.split()),
            "legendFormat": legend or "__auto",
            "instant": instant,
            "range": not instant,
            "format": "table" if panel.type == "table" else "time_series",
        }
        for number, (legend, query) in enumerate(panel.targets().items())
    ]
    found: dict[str, Any] = {
        "type": panel.type,
        "title": panel.title,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
    }
    if panel.note:
        found["description"] = panel.note
    if panel.type == "table":
        found["transformations"] = _transformations(panel)
    return found


def _defaults(panel: DescribedPanel) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if panel.unit and panel.type != "table":
        found["unit"] = panel.unit
    if panel.type == "timeseries":
        found["min"] = 0
        found["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.stack else 0,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
        }
    if panel.colours == "verdict":
        options = {
            str(code): {"text": name.replace("_", " "), "color": COLOURS[name], "index": code}
            for code, name in enumerate(VERDICTS)
        }
        found["mappings"] = [{"type": "value", "options": options}]
    if panel.colours == "bool":
        options = {
            "0": {"text": "no", "color": "red", "index": 0},
            "1": {"text": "yes", "color": "green", "index": 1},
        }
        found["mappings"] = [{"type": "value", "options": options}]
    return found


def _overrides(panel: DescribedPanel) -> list[dict[str, Any]]:
    found = []
    if panel.colours == "state":
        for state, colour in COLOURS.items():
            found.append(_override(state, "color", {"mode": "fixed", "fixedColor": colour}))
    headings: Mapping[str, str | None] = {panel.matrix[0]: None} if panel.matrix else panel.columns
    for label, heading in headings.items():
        if label in LINKS and (heading or panel.matrix):
            uid, variable = LINKS[label]
            url = f"/d/{uid}?var-datasource=${{datasource}}&var-{variable}=${{__value.text}}"
            name = rf"{label}\{panel.matrix[1]}" if panel.matrix else str(heading)
            link = {"title": f"Dashboard of this {variable}", "url": url}
            found.append(_override(name, "links", [link]))
    if panel.type == "table" and panel.unit:
        found.append(_override(str(panel.value), "unit", panel.unit))
    return found


def _override(name: str, key: str, value: object) -> dict[str, Any]:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value}],
    }


def _options(panel: DescribedPanel) -> dict[str, Any]:
    if panel.type == "stat":
        return {
            "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
            "textMode": panel.text,
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
        }
    if panel.type == "timeseries":
        return {
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": [],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {"showHeader": True}


def _transformations(panel: DescribedPanel) -> list[dict[str, Any]]:
    """Return the transformations of a table: a matrix, or columns with headings in their order."""
    if panel.matrix:
        row, column = panel.matrix
        fields = {"rowField": row, "columnField": column, "valueField": "Value"}
        return [{"id": "groupingToMatrix", "options": fields}]
    shown = [label for label, heading in panel.columns.items() if heading]
    hidden = [
        "Time",
        "__name__",
        "job",
        *(label for label, heading in panel.columns.items() if not heading),
    ]
    if panel.value:
        shown.append("Value")
    else:
        hidden.append("Value")
    headings = {label: panel.columns.get(label) or panel.value for label in shown}
    options = {
        "excludeByName": dict.fromkeys(hidden, True),
        "indexByName": {label: place for place, label in enumerate(shown)},
        "renameByName": headings,
    }
    return [{"id": "organize", "options": options}]


if __name__ == "__main__":
    for path, text in rendered().items():
        path.write_text(text)
