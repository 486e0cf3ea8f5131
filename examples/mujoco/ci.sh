# Rolls out in MuJoCo, small, with the packages of the Python client's tests.
requirements=clients/python/requirements-dev.txt
venv=${XDG_CACHE_HOME:-$HOME/.cache}/paddock/python/$({ python3 -V && cat $requirements; } | sha256sum | cut -c1-12)
if [ ! -e "$venv/ready" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r $requirements
  touch "$venv/ready"
fi
"$venv/bin/python" -W ignore examples/mujoco/rollouts.py --envs 4 --steps 50 --out "$WORK/trajectories"
test "$(find "$WORK/trajectories" -name '*.npz' | wc -l)" = 4
