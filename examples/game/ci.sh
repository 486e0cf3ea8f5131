# A served game, and OpenEnv's view of it: its validator and its client, unmodified, from PyPI.
here=$(dirname "$0")
"$PADDOCK" world build --debian bookworm --packages python3 --name judge >/dev/null
"$PADDOCK" world build "$here/world" --base judge --into /game --name game >/dev/null
python3 "$here/play.py"

openenv=openenv==0.10.0
venv=${XDG_CACHE_HOME:-$HOME/.cache}/paddock/python/$({ python3 -V && echo $openenv; } | sha256sum | cut -c1-12)
if [ ! -e "$venv/ready" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check $openenv
  touch "$venv/ready"
fi
for view in worlds/game apps/game; do
  "$venv/bin/openenv" validate --url "$APPS_URL/openenv/$view" | tee "$WORK/validated"
  test "$(grep -c '  PASS ' "$WORK/validated")" = 6
  grep -q 'Verdict: PASS' "$WORK/validated"
done
"$venv/bin/python" "$here/openenv_client.py" "$APPS_URL/openenv"
