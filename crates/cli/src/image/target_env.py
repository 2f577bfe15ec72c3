"""Runs pip as if it ran on the target: argv[1] is the target's environment (JSON, PEP 508), the rest is pip's.

pip takes --platform and --python-version for file tags, but judges `; python_version < "3.11"` by the interpreter that
runs it. Then the closure for one python is resolved with the conditions of another.
"""
import json
import sys

from pip._internal.cli.main import main
from pip._vendor.packaging import markers

target = json.loads(sys.argv[1])
own = markers.default_environment()
unknown = set(target) - set(own)
if unknown:
    sys.exit(f"this pip does not know {sorted(unknown)}")
markers.default_environment = lambda: {**own, **target}
sys.exit(main(sys.argv[2:]))
