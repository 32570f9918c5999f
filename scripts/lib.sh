# Shared by the scripts: sourced, not run. Installs only what is missing.
# shellcheck shell=bash

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

need_cargo() {
  # rustup's installer writes here, and a shell that was open then does not know.
  if ! command -v cargo >/dev/null && [ -f "$HOME/.cargo/env" ]; then . "$HOME/.cargo/env"; fi
  command -v cargo >/dev/null || {
    echo "cargo is missing: install Rust with rustup (https://rustup.rs), then come back" >&2
    exit 1
  }
}

# Debian packages.
need_packages() { # NAME...
  local name missing=()
  if ! command -v dpkg-query >/dev/null; then
    echo "not a Debian system: these must be there already: $*"
    return 0
  fi
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q ' installed$' || missing+=("$name")
  done
  [ "${#missing[@]}" -gt 0 ] || return 0
  echo "installing: ${missing[*]}"
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"
}

# Python packages in a virtual environment of this checkout.
need_python() { # DIRECTORY PACKAGE...
  local dir=$1 name missing=()
  shift
  [ -x "$dir/bin/python3" ] || python3 -m venv "$dir"
  for name in "$@"; do
    "$dir/bin/python3" -c "import importlib.metadata as m, sys; m.version(sys.argv[1])" "$name" \
      2>/dev/null || missing+=("$name")
  done
  [ "${#missing[@]}" -eq 0 ] || "$dir/bin/pip" install -q --disable-pip-version-check "${missing[@]}"
}
