#!/usr/bin/env python3
"""Tries every alert of rules.yml against recordings of real servers: an hour of idling, of ten viewers, and of overload.

    deploy/prometheus/check-alerts.py

`record.py` made the recordings, at a scrape a second, and says what standing for fifteen seconds does to them. Nobody is to be woken by the
first two; the third is to fire exactly the alerts named here. Every series that an alert looks at has to be in the recordings, or else
it could not have fired.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
FIRES = {"idle": [], "viewers": [], "overload": ["NcserverdFirstBlockSlow", "NcserverdLateRequests", "NcserverdNotReady"]}
SCRAPE = 15
# What Prometheus itself says of a server, and a date that no recording reaches.
NOT_RECORDED = {"up", "ncserverd_tls_certificate_expires_seconds"}


def alerts(rules):
    return re.findall(r"^ +- alert: (\w+)$", rules, re.M)


def series_of(rules):
    """Names of the series that expressions look at, without those that rules record."""
    code = "\n".join(line for line in rules.splitlines() if not re.match(r" *(#|summary|description)", line))
    return set(re.findall(r"(?<![:\w])((?:ncserverd|process)_\w+|up)(?=[{\[ ]|$)", code, re.M))


def input_series(text):
    found, length = [{"series": 'up{job="ncserverd", instance="a"}', "values": ""}], 0
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, values = re.match(r"(\w+(?:\{.*?\})?) (.*)$", line).groups()
        own = 'job="ncserverd",instance="a"'
        name = f"{name[:-1]},{own}}}" if name.endswith("}") else f"{name}{{{own}}}"
        length = max(length, sum(1 + int((word.split("x") + ["0"])[1]) for word in values.split()))
        found.append({"series": name, "values": values})
    found[0]["values"] = f"1x{length - 1}"
    return found, length


def test(name, rules):
    text = (HERE / "recordings" / f"{name}.txt").read_text()
    series, length = input_series(text)
    recorded = {entry["series"].split("{")[0] for entry in series}
    missing = series_of(rules) - recorded - NOT_RECORDED
    if missing:
        sys.exit(f"{name}: alerts look at what is not recorded: {', '.join(sorted(missing))}; record.py makes recordings anew")
    minutes = (length - 1) * SCRAPE // 60
    fired = f'count by (alertname) (count_over_time(ALERTS{{alertstate="firing"}}[{minutes + 1}m]))'
    # One value for each alert that has fired at any time; how often is not compared.
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in FIRES[name]]
    print(f"{name}: {minutes} minutes, {len(series)} series, {len(alerts(rules))} alerts, of which {len(samples)} are to fire")
    return {"name": name, "interval": f"{SCRAPE}s", "input_series": series,
            "promql_expr_test": [{"expr": fired, "eval_time": f"{minutes}m", "exp_samples": samples}]}


def main():
    rules = (HERE / "rules.yml").read_text()
    for alert in sum(FIRES.values(), []):
        assert alert in alerts(rules), f"there is no alert {alert}"
    tests = {"rule_files": [str(HERE / "rules.yml")], "evaluation_interval": f"{SCRAPE}s",
             "tests": [test(name, rules) for name in FIRES]}
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        # YAML takes JSON.
        json.dump(tests, file)
        file.flush()
        sys.exit(subprocess.run(["promtool", "test", "rules", file.name]).returncode)


if __name__ == "__main__":
    main()
