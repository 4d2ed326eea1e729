#!/usr/bin/env bash
# Installs what is missing, in this order: uv, the locked packages (into .venv), an OpenGL that renders without a screen.
#   usage: scripts/setup.sh [EXTRA...]     extras of pyproject.toml, such as dev or cuda
set -euo pipefail
cd "$(dirname "$0")/.."

# One set-up at a time: a second one waits here, rather than take the first one's unfinished work for wreckage.
! command -v flock >/dev/null || { exec 9<scripts/setup.sh && flock 9 || true; }

say() { echo "setup: $*" >&2; }
die() { say "error: $*"; exit 1; }

# Installs Debian packages where that needs no password; otherwise fails, and the caller says what is missing.
apt_install() {
  command -v apt-get >/dev/null || return 1
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || return 1
    as_root=(sudo -n)
  fi
  # A machine that has just started is often still upgrading itself, hence the wait for the lock.
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  say "installing with apt-get: $*"
  "${apt[@]}" update >&2 && "${apt[@]}" install -y --no-install-recommends "$@" >&2
}

# --- 1. uv: the one on PATH, or a private one in .venv-uv ---------------------------------------------------------

private=.venv-uv

private_uv() {
  rm -rf "$private"
  if python3 -m venv "$private" >/dev/null 2>&1; then
    "$private/bin/pip" install -q --disable-pip-version-check uv
  else # Debian's python3 without python3-venv; --target is allowed even where the environment is externally managed
    rm -rf "$private"
    python3 -m pip --version >/dev/null 2>&1 || return 1
    python3 -m pip install -q --disable-pip-version-check --target "$private" uv
  fi
}

# Asks it its name, because a shim or the remains of an interrupted download can be there without working.
is_uv() { "$1" --version 2>/dev/null | grep -q '^uv '; }

if is_uv uv; then
  uv=uv
else
  uv=$PWD/$private/bin/uv
  if ! is_uv "$uv"; then
    say "installing uv into $private"
    private_uv || { apt_install python3-venv && private_uv; } ||
      die "uv could not be installed; install it by hand, or Python's venv module (Debian, Ubuntu: apt-get install python3-venv)"
    echo '*' >"$private/.gitignore"
  fi
fi

# --- 2. the packages ----------------------------------------------------------------------------------------------

unset VIRTUAL_ENV # uv warns about an active environment that is not the project's
export UV_PROJECT_ENVIRONMENT=.venv
# Many machines reach a package index but not the place interpreters come from, so use the Python that is here.
export UV_PYTHON_DOWNLOADS=${UV_PYTHON_DOWNLOADS:-never} UV_PYTHON_PREFERENCE=${UV_PYTHON_PREFERENCE:-system}
export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300} # CUDA wheels are large
# uv brings certificates of its own; behind a proxy with its own issuer only the system's will do.
certs=/etc/ssl/certs/ca-certificates.crt
[ ! -s "$certs" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$certs}
cache=$("$uv" cache dir) && mkdir -p "$cache"
# Across file systems uv would try hard links first, and complain.
[ "$(stat -c %d "$cache" 2>/dev/null)" = "$(stat -c %d . 2>/dev/null)" ] || export UV_LINK_MODE=${UV_LINK_MODE:-copy}

"$uv" python find >/dev/null 2>&1 ||
  die "no Python 3.11 or 3.12 found; install one (Debian 12, Ubuntu 24.04: apt-get install python3) and try again"

extras=()
for extra in "$@"; do extras+=(--extra "$extra"); done
say "installing the locked packages into .venv${*:+ (with: $*)}"
# uv takes a package whose installation was cut short for installed, so an unfinished .venv is begun anew.
unfinished=.venv/.unfinished
if [ -e "$unfinished" ] || [ ! -x .venv/bin/python ]; then
  rm -rf .venv
  "$uv" venv -q .venv
fi
touch "$unfinished"
# --inexact keeps the extras that an earlier set-up installed, so that train and test do not undo each other.
"$uv" sync --locked --inexact "${extras[@]}"
rm -f "$unfinished"

# --- 3. OpenGL without a screen -----------------------------------------------------------------------------------

# Libraries that are there can still fail to render, so the test is a picture, not a file's presence.
renders() {
  MUJOCO_GL=${MUJOCO_GL:-egl} .venv/bin/python - <<'PY'
import mujoco

model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><light pos='0 0 3'/><geom size='1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 64, 64) as renderer:
    renderer.update_scene(data)
    assert renderer.render().any(), "the rendered picture is black"
PY
}

# A package that does not even load is no matter for apt-get.
MUJOCO_GL=disable .venv/bin/python -c 'import mujoco' || die "MuJoCo does not load; try again after make clean"

gl="libegl1 libopengl0 libgl1-mesa-dri libegl-mesa0"
if [ "$(uname)" = Linux ] && ! renders >/dev/null 2>&1; then
  # Where all of them are there already, apt-get could only upgrade them, which nobody asked for.
  # shellcheck disable=SC2086 # a list of packages
  dpkg -s $gl >/dev/null 2>&1 || apt_install $gl ||
    die "no working OpenGL (EGL) found; install it (Debian, Ubuntu: apt-get install $gl) and try again"
  renders || die "OpenGL (EGL) does not render, though $gl are installed; MuJoCo's message is above"
fi
say "ready"
