#!/bin/sh
# Everything about job F on a GPU in one call of under ten minutes; see gpu.py. PYTHON names the interpreter.
here=$(cd "$(dirname "$0")" && pwd)
PYTHONPATH="$here/../src${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python}" "$here/gpu.py" "$@"
