#!/usr/bin/env bash
# What pip and npm cannot bring: Python's venv module, a Chromium.
#   tools/system.sh venv [chromium]
# Says nothing if all is there. Otherwise installs what Debian splits off when it may (root), or names the one command.
set -euo pipefail

python=${PYTHON:-python3}
missing=()

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "attnwidget needs Python 3.10 or newer, and \`$python\` is not: name another, as in \`make PYTHON=python3.12 …\`" >&2
    exit 1
fi

for need in "$@"; do
    case $need in
        venv)
            # Debian keeps ensurepip, without which a venv has no pip, in a package of its own.
            if [ ! -x "${VENV:-.venv}/bin/pip" ] && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
                missing+=("$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')")
            fi
            ;;
        chromium)
            # The same names as in tests/browser/lab.py.
            found=${ATTNWIDGET_BROWSER:-}
            for name in chromium chromium-browser google-chrome google-chrome-stable; do
                if [ -z "$found" ]; then found=$(command -v "$name" || true); fi
            done
            if [ -z "$found" ]; then missing+=(chromium fonts-dejavu-core); fi
            ;;
    esac
done

if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}"
elif command -v apt-get >/dev/null; then
    echo "Missing on this machine: ${missing[*]}. Please run this, then make again:" >&2
    echo "    sudo apt-get install -y ${missing[*]}" >&2
    exit 1
else
    echo "Missing on this machine: ${missing[*]} (the names of Debian's packages)." >&2
    echo "Please install them; a browser elsewhere can be named: ATTNWIDGET_BROWSER=/path/to/chrome make test" >&2
    exit 1
fi
