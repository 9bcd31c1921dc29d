#!/usr/bin/env bash
# Installs packages into $VENV, with uv where it can be had, as it takes seconds where pip takes a minute; else with pip.
#   tools/install.sh -c constraints.txt -e ".[demo]"
set -euo pipefail

python=${VENV:-.venv}/bin/python
pip=("$python" -m pip --disable-pip-version-check)

# Prints one of pip's settings; the environment's come first.
setting() {
    sed -n "s/^.*\.$1='\(.*\)'\$/\1/p" <<<"$settings" | head -n 1
}

with_uv() {
    "$python" -c 'import uv' 2>/dev/null || "${pip[@]}" install --quiet uv 2>/dev/null || return 1
    # uv does not read pip's settings.
    local settings index links cert
    settings=$("${pip[@]}" config list 2>/dev/null || true)
    index=$(setting index-url) links=$(setting find-links) cert=$(setting cert)
    [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
    [ -z "$links" ] || export UV_FIND_LINKS=${UV_FIND_LINKS:-${links// /,}}
    [ -z "$cert" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$cert}
    local quiet=()
    [ -t 2 ] || quiet=(--quiet) # no terminal, no progress
    "$python" -m uv pip install "${quiet[@]}" --python "$python" "$@"
}

if with_uv "$@"; then exit 0; fi
echo "uv could not install this: trying pip, which takes longer" >&2
exec "${pip[@]}" install "$@"
