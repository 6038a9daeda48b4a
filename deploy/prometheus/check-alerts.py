#!/usr/bin/env python3
"""Tries every alert of rules.yml against recordings of real servers: idle, watched, overloaded.

    deploy/prometheus/check-alerts.py

`record.py` made the recordings: four minutes each, with a scrape per second. They are read as
Prometheus reads a server, every fifteenth second, and repeated until they make an hour; counters
continue from round to round. The first two must fire no alert; the third must fire exactly the
alerts named here. The servers were alone, so alerts of fleets must fire nowhere: `ALONE` has what
such a server says of its fleet all the time. Every series of an alert has to be in the recordings,
because otherwise the alert could not have fired. docs/fleet.md has a row for each alert of fleets.
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
HOUR = 3600
COUNTERS = ("_total", "_bucket", "_count", "_sum")
# Series that Prometheus itself makes, dates that no recording reaches, and deaths, of which there
# were none.
NOT_RECORDED = {"up", "ncserverd_tls_certificate_expires_seconds", "ncserverd_tls_certificate_begins_seconds",
                "ncserverd_supervise_deaths_total"}
# Series of a server without an engine that the recordings lack, from its /metrics. None of them
# changes.
ALONE = """
ncserverd_cluster_changes_total{change="draining"} 0
ncserverd_cluster_changes_total{change="joined"} 0
ncserverd_cluster_changes_total{change="left"} 0
ncserverd_cluster_changes_total{change="lost"} 0
ncserverd_cluster_changes_total{change="refused"} 0
ncserverd_cluster_changes_total{change="restarted"} 0
ncserverd_cluster_changes_total{change="twins"} 0
ncserverd_cluster_config_hash 0
ncserverd_cluster_config_newest_hash 0
ncserverd_cluster_config_newest_revision 0
ncserverd_cluster_config_revision 0
ncserverd_cluster_config_up 1
ncserverd_cluster_engine_up 1
ncserverd_cluster_fetches_total{by="hedge"} 0
ncserverd_cluster_fetches_total{by="home"} 0
ncserverd_cluster_fetches_total{by="member"} 0
ncserverd_cluster_members 1
ncserverd_cluster_unlike_members 0
ncserverd_endpoint_handshakes_sent_on_total 0
ncserverd_endpoint_max_connections 20000
ncserverd_session_sent_on_total{reason="drain"} 0
ncserverd_session_sent_on_total{reason="full"} 0
ncserverd_session_sent_on_total{reason="placement"} 0
ncserverd_session_sent_on_total{reason="replaced"} 0
"""


def alerts(rules):
    return re.findall(r"^ +- alert: (\w+)$", rules, re.M)


def series_of(rules):
    """Names of the series that expressions look at, without those that rules record."""
    code = "\n".join(line for line in rules.splitlines() if not re.match(r" *(#|summary|description)", line))
    return set(re.findall(r"(?<![:\w])((?:ncserverd|process)_\w+|up)(?=[{\[ ]|$)", code, re.M))


def seconds_of(values):
    """Returns a value for each second, or None: `record.py` writes `vxN` for N more of v."""
    found = []
    for word in values.split():
        value, _, more = word.partition("x")
        found += [None if value == "_" else float(value)] * (1 + int(more or 0))
    return found


def hour_of(name, values):
    """What a scrape finds every fifteen seconds for an hour, if the recording goes on like that."""
    values, scrapes = seconds_of(values), []
    there = [value for value in values if value is not None]
    growth = there[-1] - there[0] if name.split("{")[0].endswith(COUNTERS) else 0
    for second in range(0, HOUR + 1, SCRAPE):
        # The last second is the first of the next round.
        rounds, second = divmod(second, len(values) - 1)
        scrapes.append("_" if values[second] is None else f"{values[second] + rounds * growth:.15g}")
    return " ".join(scrapes)


def alone(text):
    """The series of `ALONE` that a recording lacks, as a recording writes them."""
    lines = [line.rsplit(" ", 1) for line in ALONE.split("\n") if line]
    return "".join(f"{name} {value}x240\n" for name, value in lines if f"\n{name} " not in text)


def input_series(text):
    found = [{"series": 'up{job="ncserverd", instance="a"}', "values": f"1x{HOUR // SCRAPE}"}]
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, values = re.match(r"(\w+(?:\{.*?\})?) (.*)$", line).groups()
        own = 'job="ncserverd",instance="a"'
        name = f"{name[:-1]},{own}}}" if name.endswith("}") else f"{name}{{{own}}}"
        found.append({"series": name, "values": hour_of(name, values)})
    return found


def test(name, rules):
    text = (HERE / "recordings" / f"{name}.txt").read_text()
    series = input_series(text + alone(text))
    recorded = {entry["series"].split("{")[0] for entry in series}
    missing = series_of(rules) - recorded - NOT_RECORDED
    if missing:
        sys.exit(f"{name}: alerts look at what is not recorded: {', '.join(sorted(missing))}; record.py makes recordings anew")
    minutes = HOUR // 60
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
    of_fleets = {alert for alert in alerts(rules) if alert.startswith("NcserverdFleet")}
    explained = set(re.findall(r"^\| `(NcserverdFleet\w+)` \|", (HERE.parents[1] / "docs/fleet.md").read_text(), re.M))
    assert explained == of_fleets, f"docs/fleet.md and the rules differ: {explained ^ of_fleets}"
    tests = {"rule_files": [str(HERE / "rules.yml")], "evaluation_interval": f"{SCRAPE}s",
             "tests": [test(name, rules) for name in FIRES]}
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        # YAML takes JSON.
        json.dump(tests, file)
        file.flush()
        sys.exit(subprocess.run(["promtool", "test", "rules", file.name]).returncode)


if __name__ == "__main__":
    main()
