#!/usr/bin/env bash
# Runs a command beside a PostgreSQL server of its own, which EXACTLM_POSTGRES_URL names and which is gone afterwards:
#   tools/with_postgres.sh make test
# Needs Debian's package `postgresql`, or initdb and pg_ctl in PATH. Root becomes `postgres` or `nobody` for the server.
set -euo pipefail

[ $# -gt 0 ] || { sed -n '2,4s/^# \?//p' "$0" >&2; exit 2; }
PATH="$PATH$(printf ':%s' /usr/lib/postgresql/*/bin)"
unset "${!PG@}" # they would lead to another server
command -v initdb >/dev/null || { echo "$0: there is no initdb: install postgresql" >&2; exit 2; }

folder="$(mktemp -d /tmp/exactlm-postgres.XXXXXX)" # of a length and form that a socket and a URL can bear
as_server() { env -C "$folder" "$@"; }
if [ "$(id -u)" = 0 ]; then
  user="$(id -un postgres 2>/dev/null || echo nobody)"
  chown "$user" "$folder"
  as_server() { runuser -u "$user" -- env -C "$folder" "PATH=$PATH" "$@"; }
fi
stop() {
  as_server pg_ctl -D "$folder/data" -m immediate stop >/dev/null 2>&1 || true
  rm -rf "$folder"
}
trap stop EXIT

said="$(as_server initdb -D "$folder/data" -A trust -U postgres -E UTF8 --locale=C 2>&1)" || { echo "$said" >&2; exit 2; }
# Only a socket: no port that another server could have, and nobody from outside.
as_server pg_ctl -D "$folder/data" -l "$folder/log" -w -o "-k '$folder' -c listen_addresses=''" start >/dev/null || {
  cat "$folder/log" >&2
  exit 2
}
EXACTLM_POSTGRES_URL="postgresql://postgres@/postgres?host=$folder" "$@"
