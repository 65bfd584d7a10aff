"""Writes what ansible-core gives for the expressions of filters.txt, which the controller's own tests compare with.

Called by `make compat`; arguments: the list of expressions, the file to write.
"""

import json
import re
import sys

import jinja2.filters
import jinja2.tests
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import filter_loader, test_loader
from ansible.template import Templar, trust_as_template

VARIABLES = {
    "text": "one\ntwo\nthree\n",
    "blank_lines": "one\n\ntwo",
    "long": "the quick brown fox jumps over the lazy dog " * 4 + "end",
    "docs": "---\na: 1\n---\n- x\n- y\n",
    "users": [
        {"name": "ann", "uid": 3, "kind": "human", "groups": ["wheel", "gpu"], "admin": True, "auth": {"keys": ["k1", "k2"]}},
        {"name": "bob", "uid": 1, "kind": "robot", "groups": ["gpu"], "admin": False},
        {"name": "cid", "uid": 2, "kind": "human", "groups": [], "admin": False, "auth": {"keys": []}},
    ],
}


def names(loader, own) -> list[str]:
    plugins = {plugin.ansible_name.rsplit(".", 1)[-1] for plugin in loader.all() if plugin.ansible_name}
    return sorted(plugins | {name for name in own if name.isidentifier()})


def main() -> None:
    source, target = sys.argv[1:3]
    templar = Templar(loader=DataLoader(), variables=VARIABLES)
    with open(source, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    rows = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        try:
            value = templar.template(trust_as_template("{{ " + line + " }}"))
            rows.append([line, {"value": json.loads(json.dumps(value))}])
        except Exception as error:  # what is wrong with it is for the reader of the file
            message = re.sub(r" at 0x[0-9a-f]+|/\S*/site-packages", "", str(error))
            rows.append([line, {"error": message.splitlines()[0] if message else type(error).__name__}])
    with open(target, "w", encoding="utf-8") as file:
        file.write('{"filters": ' + json.dumps(names(filter_loader, jinja2.filters.FILTERS)) + ",\n")
        file.write('"tests": ' + json.dumps(names(test_loader, jinja2.tests.TESTS)) + ",\n")
        file.write('"variables": ' + json.dumps(VARIABLES) + ',\n"cases": [\n')
        file.write(",\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
        file.write("\n]}\n")
    print(f"{len(rows)} expressions of filters.txt", file=sys.stderr)


if __name__ == "__main__":
    main()
