python3 "$(dirname "$0")/loop.py"
