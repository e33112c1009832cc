#!/usr/bin/env bash
# Installs what the tests use beside Python: a Prometheus server with promtool, and a PostgreSQL server. Called by
# `make debian` and `make test`.
#
# Where it cannot (no root, no apt-get, no network) it says in one line what stays untested and succeeds, because the
# rest of the tests needs nothing of it. It never starts the Debian services, which would take ports of the machine.
set -euo pipefail

say() { echo "install_debian: $*"; }
untested() {
  say "NOT TESTED: everything that runs a real $1, because $2" >&2
  exit 0
}

wanted=()
if ! command -v prometheus >/dev/null || ! command -v promtool >/dev/null; then wanted+=(prometheus); fi
if ! command -v postgres >/dev/null && ! compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null; then
  wanted+=(postgresql)
fi
if [ ${#wanted[@]} = 0 ]; then exit 0; fi
names="${wanted[*]}"
command -v apt-get >/dev/null || untested "$names" "it is not there and this system has no apt-get to install it"
[ "$(id -u)" = 0 ] || untested "$names" "it is not there and only root may install it (apt install $names)"

# Debian's own switch against starting services while packages are set up. An administrator's file stays as it is.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
install() { apt-get install -y -qq --no-install-recommends "${wanted[@]}" </dev/null >/dev/null; }
known() {
  local candidate
  candidate=$(apt-cache policy "$1" 2>/dev/null | awk '$1 == "Candidate:" {print $2}')
  [ -n "$candidate" ] && [ "$candidate" != "(none)" ]
}

say "installing Debian's $names (the services stay off)"
if ! known "${wanted[0]}" || ! install; then
  apt-get update -qq </dev/null || untested "$names" "apt-get update failed (see above)"
  install || untested "$names" "apt-get install failed (see above)"
fi
# Not at the next boot either: whoever wants a service turns it on with systemctl enable.
if command -v systemctl >/dev/null; then
  for service in "${wanted[@]}"; do systemctl disable --quiet "$service.service" 2>/dev/null || true; done
fi
say "installed $names"
