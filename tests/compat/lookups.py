"""Writes what ansible-core gives for the lookups of lookups.txt, which the controller's own tests compare with.

Called by `make compat`; arguments: the list of expressions, the folder of the files that they look for, the file to write.
"""

import json
import os
import re
import shutil
import sys
import tempfile

from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import lookup_loader
from ansible.template import Templar, trust_as_template

from filters import VARIABLES, names


def main() -> None:
    source, folder, target = (os.path.abspath(path) for path in sys.argv[1:4])
    # Why a copy: the lookup `password` writes a lock beside its file.
    copy = os.path.join(os.path.realpath(tempfile.mkdtemp()), "playbook")
    shutil.copytree(folder, copy)
    os.environ["GPUFLEET_COMPAT_SET"] = "some value"
    os.environ.pop("GPUFLEET_COMPAT_NOT_SET", None)
    loader = DataLoader()
    loader.set_basedir(copy)
    variables = {"lazy": trust_as_template("{{ users[0].name }}"), "playbook_dir": copy, **VARIABLES}
    with open(source, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    rows = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        templar = Templar(loader=loader, variables=variables)
        try:
            value = json.dumps(templar.template(trust_as_template("{{ " + line + " }}")))
            rows.append([line, {"value": json.loads(value.replace(copy, "FOLDER"))}])
        except Exception as error:  # what is wrong with it is for the reader of the file
            message = re.sub(r" at 0x[0-9a-f]+|/\S*/site-packages", "", str(error)).replace(copy, "FOLDER")
            rows.append([line, {"error": message.splitlines()[0] if message else type(error).__name__}])
    shutil.rmtree(os.path.dirname(copy))
    with open(target, "w", encoding="utf-8") as file:
        file.write('{"lookups": ' + json.dumps(names(lookup_loader, [])) + ",\n")
        file.write('"variables": ' + json.dumps(VARIABLES) + ',\n"cases": [\n')
        file.write(",\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
        file.write("\n]}\n")
    print(f"{len(rows)} expressions of lookups.txt", file=sys.stderr)


if __name__ == "__main__":
    main()
