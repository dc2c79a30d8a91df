"""Look the pinned packages up in a database of known vulnerabilities: python .ci/audit.py constraints.txt

First a release that is known to be vulnerable: where the database cannot be reached, pip-audit leaves out every
package and ends with exit code 0. Exit codes: 0 nothing is known, 1 something is, 3 NOT RUN.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KNOWN = "jinja2==3.1.3"  # GHSA-h75v-3vvj-5mfj (CVE-2024-34064), repaired in 3.1.4
PASS, FAIL, NOT_RUN = 0, 1, 3

Dependencies = list[dict[str, Any]]


def main() -> int:
    """Ask for the known release, then for the pins."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(f"{KNOWN}\n")
        file.flush()
        known = looked_up(Path(file.name))
    if (code := verdict(known, [])[0]) == NOT_RUN:
        print(verdict(known, [])[1])
        return code
    code, words = verdict(known, looked_up(Path(sys.argv[1])))
    print(words)
    return code


def looked_up(pins: Path) -> Dependencies:
    """pip-audit's entry for each line of a file of pins; none where it gives no answer."""
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "30"]
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(pins), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        dependencies: Dependencies = json.loads(done.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        sys.stderr.write(done.stderr[-2000:])
        return []
    return dependencies


def verdict(known: Dependencies, pinned: Dependencies) -> tuple[int, str]:
    """Exit code and lines, of the release that is known to be vulnerable and of the pins."""
    if not any(each.get("vulns") for each in known):
        reasons = "; ".join(str(each["skip_reason"]) for each in known if "skip_reason" in each)
        return NOT_RUN, f"NOT RUN: no database knows of {KNOWN}, which is vulnerable" + (
            f" ({reasons})" if reasons else ""
        )
    lines = [
        f"{each['name']} {each['version']}: {found['id']}, repaired in {', '.join(found['fix_versions']) or 'none'}"
        for each in pinned
        for found in each.get("vulns", [])
    ]
    left = [str(each["skip_reason"]) for each in pinned if "skip_reason" in each]
    lines.append(f"{len(pinned) - len(left)} of {len(pinned)} packages looked up, {len(lines)} vulnerabilities known")
    if len(lines) > 1:
        return FAIL, "\n".join(lines + left)
    return (NOT_RUN if left or not pinned else PASS), "\n".join(lines + [f"NOT RUN: {each}" for each in left])


if __name__ == "__main__":
    sys.exit(main())
