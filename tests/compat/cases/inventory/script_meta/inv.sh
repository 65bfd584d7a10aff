#!/bin/sh
cat <<'END'
{"gpu": ["n1", "n2"], "rack": {"hosts": ["n1"], "vars": {"x": [1, null, true]}, "children": ["sub"]}, "sub": {"hosts": ["n3"]},
 "_meta": {"hostvars": {"n1": {"a": 1, "t": "{{ x }}"}, "n2": {}}}}
END
