"""Reads the documents of one report with programs that know nothing of gpufleet, and compares their numbers.

Usage: validate.py FOLDER REPORT_SCHEMA SARIF_SCHEMA. FOLDER has report.json, .xml, .sarif, .csv, .md, .prom and .om of one
audit. Prints a line a format; ends with an error at the first that is wrong.
"""

import csv
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import junitparser
from jsonschema import Draft7Validator, Draft202012Validator
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families
from sarif import loader

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LIMIT_S = 60


def must(condition, what):
    if not condition:
        sys.exit(f"wrong: {what}")


def fits(validator, document, name):
    errors = [f"{'/'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(document)]
    must(not errors, f"{name}: " + "\n".join(errors[:10]))


def of_json(folder, schema):
    document = json.loads((folder / "report.json").read_text())
    schema = json.loads(pathlib.Path(schema).read_text())
    Draft202012Validator.check_schema(schema)
    fits(Draft202012Validator(schema), document, "report.json")
    return {name: (node["verdict"], len(node["findings"])) for name, node in document["nodes"].items()}


def of_sarif(folder, schema, nodes):
    path = folder / "report.sarif"
    document = json.loads(path.read_text())
    fits(Draft7Validator(json.loads(pathlib.Path(schema).read_text())), document, "report.sarif")
    results = loader.load_sarif_file(str(path)).get_results()
    bad = [it for it in results if it["kind"] in ("fail", "open") and it["ruleId"]]
    must(len(bad) >= sum(count for _, count in nodes.values()), "report.sarif: findings are missing")
    rules = {rule["id"] for rule in document["runs"][0]["tool"]["driver"]["rules"]}
    must({it["ruleId"] for it in results} <= rules, "report.sarif: a result has no rule")


def of_junit(folder, nodes):
    report = junitparser.JUnitXml.fromfile(str(folder / "report.xml"))
    found = {name: 0 for name in nodes}
    for suite in report:
        cases = list(suite)
        bad = [case for case in cases if any(isinstance(it, junitparser.Failure) for it in case.result)]
        must((suite.tests, suite.failures) == (len(cases), len(bad)), f"report.xml: sums of {suite.name}")
        for case in cases if suite.name == "findings" else []:
            found[case.classname] += not case.name.startswith("verdict on ")
    wanted = {name: count for name, (_, count) in nodes.items()}
    must(found == wanted, f"report.xml: {found}, wanted {wanted}")


def of_csv(folder, nodes):
    with open(folder / "report.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, strict=True))
    must(all(None not in row and None not in row.values() for row in rows), "report.csv: columns")
    found = {name: (row["node_verdict"], 0) for row in rows for name in [row["node"]]}
    for row in rows:
        verdict, count = found[row["node"]]
        found[row["node"]] = (verdict, count + bool(row["control"]))
    must(found == nodes, f"report.csv: {found}, wanted {nodes}")


def of_metrics(folder, name, families, nodes):
    text = (folder / name).read_text()
    found = {}
    series = 0
    for family in families(text):
        must(family.type != "unknown", f"{name}: {family.name} has no type")
        must(family.documentation, f"{name}: {family.name} has no help")
        for sample in family.samples:
            series += 1
            if sample.name == "gpufleet_node_verdict" and sample.value == 1:
                node = sample.labels["node"]
                found[node] = (sample.labels["gpufleet_node_verdict"], found.get(node, (None, 0))[1])
            if sample.name == "gpufleet_check_findings":
                node = sample.labels["node"]
                verdict, count = found.get(node, (None, 0))
                found[node] = (verdict, count + int(sample.value))
    must(found == nodes, f"{name}: {found}, wanted {nodes}")
    return text, series


def node_exporter_takes(text):
    """By Prometheus' own parser of its text format, which is the one that the textfile collector of node_exporter has."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    must(done.returncode == 0 and not done.stderr, f"promtool refuses report.prom: {done.stderr}")


class Target(http.server.BaseHTTPRequestHandler):
    text = b""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", OPENMETRICS)
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, *_):
        pass


def free_port():
    with http.server.HTTPServer(("127.0.0.1", 0), Target) as server:
        return server.server_address[1]


def asked(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
        return json.load(answer)["data"]


def prometheus_takes(text, series, nodes):
    """Lets a real Prometheus scrape the document: `promtool check metrics` reads only the older text format."""
    Target.text = text.encode()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Target)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="gpufleet-prometheus-"))
    port = free_port()
    target = f"127.0.0.1:{server.server_address[1]}"
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: gpufleet, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    subprocess.run(["promtool", "check", "config", folder / "prometheus.yml"], check=True, capture_output=True)
    words = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        end = time.monotonic() + LIMIT_S
        state = None
        while time.monotonic() < end:
            time.sleep(0.5)
            try:
                state = asked(port, "targets")["activeTargets"][0]
            except (OSError, IndexError):
                continue
            if state["health"] != "unknown":
                break
        must(state is not None, f"prometheus did not start: {(folder / 'log').read_text()[-2000:]}")
        must(state["health"] == "up", f"prometheus refuses report.om: {state['lastError']}")
        query = urllib.parse.quote('gpufleet_node_verdict == 1')
        found = {it["metric"]["node"]: it["metric"]["gpufleet_node_verdict"] for it in asked(port, f"query?query={query}")["result"]}
        must(found == {name: verdict for name, (verdict, _) in nodes.items()}, f"prometheus has {found}")
        query = urllib.parse.quote("scrape_samples_scraped")
        taken = int(asked(port, f"query?query={query}")["result"][0]["value"][1])
        must(taken == series, f"prometheus took {taken} of {series} samples")
    finally:
        process.terminate()
        process.wait(30)
        server.shutdown()
        shutil.rmtree(folder)


def main():
    folder, report_schema, sarif_schema = sys.argv[1:]
    folder = pathlib.Path(folder)
    nodes = of_json(folder, report_schema)
    print(f"json: {len(nodes)} nodes, {sum(count for _, count in nodes.values())} findings")
    of_sarif(folder, sarif_schema, nodes)
    of_junit(folder, nodes)
    of_csv(folder, nodes)
    text, series = of_metrics(folder, "report.prom", prometheus_families, nodes)
    node_exporter_takes(text)
    text, again = of_metrics(folder, "report.om", openmetrics_families, nodes)
    must(series == again, f"{series} samples in report.prom, {again} in report.om")
    print(f"sarif, junit, csv, prometheus, openmetrics: the same; {series} samples")
    prometheus_takes(text, series, nodes)
    print("prometheus: scraped")


if __name__ == "__main__":
    main()
