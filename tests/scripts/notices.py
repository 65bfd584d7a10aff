#!/usr/bin/env python3
"""Writes the licences of all crates that a released gpufleet contains; fails where one has no text.

What counts is what cargo builds for Linux without development and build dependencies, on both sides. A crate that ships
no licence file gets the text of its licence without a name of an author, as its manifest declares it.
"""
import json, pathlib, re, subprocess, sys

SHIPPED = {"gpufleet", "gpufleet-node", "gpufleet-nvml"}
TARGETS = ["x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl", "aarch64-unknown-linux-gnu", "aarch64-unknown-linux-musl"]
FILES = re.compile(r"^(licen[cs]e|copying|notice|unlicense|copyright)", re.IGNORECASE)
ROOT = pathlib.Path(__file__).resolve().parents[2]
MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def shipped_crates():
    """Every package that a released binary is linked from, by name and version."""
    found = {}
    for target in TARGETS:
        command = ["cargo", "metadata", "--format-version=1", "--locked", "--all-features", "--filter-platform", target]
        graph = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
        packages = {package["id"]: package for package in graph["packages"]}
        needs = {
            node["id"]: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
            for node in graph["resolve"]["nodes"]
        }
        todo = [key for key, package in packages.items() if package["name"] in SHIPPED]
        seen = set(todo)
        while todo:
            for need in needs[todo.pop()]:
                if need not in seen:
                    seen.add(need)
                    todo.append(need)
        for package in (packages[key] for key in seen):
            if package["source"] is not None:
                found[package["name"], package["version"]] = package
    return [found[key] for key in sorted(found)]


def texts(package):
    """The licence files of a crate; the text that its manifest names where it has none."""
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.iterdir() if path.is_file() and FILES.match(path.name))
    if files:
        return [path.read_text(encoding="utf-8", errors="replace").strip() for path in files]
    licence = package["license"] or ""
    if "Apache-2.0" in licence:
        return [(ROOT / "LICENSE").read_text().strip()]
    return [MIT.strip()] if "MIT" in licence else []


def main():
    crates, missing = shipped_crates(), []
    by_text = {}
    for package in crates:
        of_crate = texts(package)
        if not of_crate:
            missing.append(f"{package['name']} {package['version']} ({package['license']})")
        for text in of_crate:
            by_text.setdefault(text, []).append(package)
    if missing:
        sys.exit("error: no licence text for " + ", ".join(missing))
    out = ["Third-party software in gpufleet", "", "gpufleet is licensed under the Apache License 2.0. It contains these crates:", ""]
    out += [f"  {p['name']} {p['version']}  {p['license']}  {p['repository'] or ''}".rstrip() for p in crates]
    for text, users in sorted(by_text.items(), key=lambda item: (-len(item[1]), item[1][0]["name"])):
        out += ["", "-" * 100, "Used by " + ", ".join(f"{p['name']} {p['version']}" for p in users) + ":", "", text]
    pathlib.Path(sys.argv[1]).write_text("\n".join(out) + "\n", encoding="utf-8")
    print(f"{len(crates)} crates, {len(by_text)} licence texts: {sys.argv[1]}")


main()
