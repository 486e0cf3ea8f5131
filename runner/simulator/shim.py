"""Serves one Gymnasium environment on stdin and stdout, as docs/simulators.md says.

It runs inside a world, as `python3 -c SHIM ID KWARGS`, with state.py before it, and needs
what the environment needs and nothing else. What the environment prints goes to standard
error.
"""

import base64
import binascii
import json
import math
import os
import random
import sys
import traceback

RAW = 4096  # arrays from this many bytes on travel as raw frames

dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def main():
    out = os.dup(1)
    os.dup2(2, 1)
    lines = os.fdopen(os.dup(0), "rb", buffering=1 << 16)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    server = Server(sys.argv[1], json.loads(sys.argv[2] or "{}"))
    send(out, server.hello())
    for line in lines:
        send(out, server.answer(line))


def send(out, answer):
    line, frames = answer
    data = b"".join([line.encode(), b"\n", *frames]) if frames else line.encode() + b"\n"
    while data:
        data = data[os.write(out, data) :]


class Server:
    def __init__(self, name, kwargs):
        import gymnasium
        import numpy

        self.np = numpy
        self.kinds = {}  # little-endian types by those of arrays that were sent
        self.spaces = gymnasium.spaces
        self.make = lambda: gymnasium.make(name, disable_env_checker=True, **kwargs)
        self.env = self.make()
        self.seen = None  # the last observation and info, or the answer that had them
        self.action_space = self.env.action_space

    def hello(self):
        spec = self.env.spec
        return self.encode(
            {
                "protocol": "paddock-simulator/1",
                "observation_space": self.schema(self.env.observation_space),
                "action_space": self.schema(self.action_space),
                "metadata": {k: v for k, v in self.env.metadata.items() if plain(v)},
                "spec": {
                    "id": spec.id if spec else "",
                    "max_episode_steps": spec.max_episode_steps if spec else None,
                    "nondeterministic": bool(spec.nondeterministic) if spec else False,
                },
                "ops": ["reset", "step", "render"],
                "snapshots": "trial",
            }
        )

    def answer(self, line):
        try:
            message = json.loads(line)
            answer = getattr(self, "do_" + message["op"])(message)
            return answer if type(answer) is tuple else self.encode(answer)
        except tuple(REFUSALS) as e:
            return json.dumps({"error": {"kind": REFUSALS[type(e)], "detail": str(e)[:1024]}}), []
        except Exception as e:
            said = "".join(traceback.format_exception(type(e), e, e.__traceback__))
            print(said, file=sys.stderr, flush=True)
            return json.dumps({"error": {"kind": "crash", "detail": said[-2048:]}}), []

    def do_reset(self, message):
        seed = message.get("seed")
        if seed is not None:
            # For environments that draw from the global generators all the same.
            random.seed(seed)
            self.np.random.seed(seed & 0xFFFFFFFF)
        observation, info = self.env.reset(seed=seed, options=message.get("options"))
        self.seen = {"observation": observation, "info": info}
        return self.seen

    def do_step(self, message):
        action = self.decode(message.get("action"), self.action_space)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.seen = {"observation": observation, "info": info}
        return {
            "observation": observation,
            "reward": float(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
            "info": info,
        }

    def do_render(self, message):
        return {"observation": self.env.render()}

    # Snapshots. The way in which they are taken is that which a trial has found.

    def do_trial(self, message):
        return {"way": trial(self.env, self.make, self.encode, message["max"])}

    def do_snapshot(self, message):
        seen = self.seen if type(self.seen) is tuple else self.encode(self.seen)
        data = take(self.env, message["way"], message["max"], seen)
        return {"snapshot": self.np.frombuffer(data, dtype=self.np.uint8)}

    def do_restore(self, message):
        self.seen = put(self.env, binascii.a2b_base64(message["snapshot"]))
        return self.seen

    # Values: JSON, with arrays as {"$array": dtype, "shape": [...], "b64" or "frame": ...}.

    def encode(self, value):
        frames = []
        body = self.value(value, frames)
        if frames:
            body["frames"] = [len(f) for f in frames]
        return dumps(body), frames

    def value(self, v, frames):
        if type(v) is self.np.ndarray:
            return self.array(v, frames)
        if v is None or isinstance(v, (bool, str)):
            return v
        if isinstance(v, float):
            v = float(v)
            return v if math.isfinite(v) else {"$float": repr(v)}
        if isinstance(v, dict):
            return {str(k): self.value(x, frames) for k, x in v.items()}
        if isinstance(v, (list, tuple)):
            return [self.value(x, frames) for x in v]
        if isinstance(v, int):
            return int(v)
        if isinstance(v, (self.np.ndarray, self.np.generic)):
            return self.array(self.np.asarray(v), frames)
        return {"$repr": repr(v)[:256]}

    def array(self, a, frames):
        if a.dtype.hasobject:
            return {"$repr": repr(a)[:256]}
        kind = self.kinds.get(a.dtype)
        if kind is None:
            kind = self.kinds[a.dtype] = a.dtype.newbyteorder("<")
        head = {"$array": kind.str, "shape": list(a.shape)}
        data = a.astype(kind, copy=False).tobytes()
        if len(data) >= RAW:
            head["frame"] = len(frames)
            frames.append(data)
        else:
            head["b64"] = binascii.b2a_base64(data, newline=False).decode()
        return head

    def decode(self, v, space):
        s, np = self.spaces, self.np
        try:
            if isinstance(space, s.Dict):
                return {k: self.decode(v[k], sub) for k, sub in space.spaces.items()}
            if isinstance(space, s.Tuple):
                if len(v) != len(space.spaces):
                    raise ValueError("has %d parts, not %d" % (len(v), len(space.spaces)))
                return tuple(self.decode(x, sub) for x, sub in zip(v, space.spaces))
            if isinstance(v, dict) and "$array" in v:
                v = np.frombuffer(base64.b64decode(v["b64"]), dtype=v["$array"]).reshape(v["shape"])
            if isinstance(space, s.Discrete):
                a = np.asarray(v)
                if a.shape != () or a.dtype.kind not in "iu":
                    raise ValueError("is no integer: %.100r" % (v,))
                v = np.int64(a)
                if not space.contains(v):
                    raise ValueError("%d is not in %s" % (v, space))
                return v
            if isinstance(space, s.Text):
                if not space.contains(v):
                    raise ValueError("%.100r is not in %s" % (v, space))
                return v
            if isinstance(space, s.OneOf):
                return int(v[0]), self.decode(v[1], space.spaces[int(v[0])])
            if isinstance(space, s.Sequence):
                return tuple(self.decode(x, space.feature_space) for x in v)
            a = np.array(v, dtype=space.dtype)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as e:
            raise BadAction("the action %s" % e) from e
        if a.shape != space.shape:
            raise BadAction("the action has the shape %s, not %s" % (a.shape, space.shape))
        if a.dtype.kind == "f" and not np.isfinite(a).all():
            raise BadAction("the action is not finite")
        if isinstance(space, (s.MultiDiscrete, s.MultiBinary)) and not space.contains(a):
            raise BadAction("the action is not in %s" % space)
        return a

    # Spaces: JSON schemas of the values' form, with the space itself under "space".

    def schema(self, space):
        s = self.spaces
        if isinstance(space, s.Discrete):
            low = int(space.start)
            return {
                "type": "integer",
                "minimum": low,
                "maximum": low + int(space.n) - 1,
                "space": {"type": "Discrete", "n": int(space.n), "start": low},
            }
        if isinstance(space, s.Dict):
            parts = {k: self.schema(v) for k, v in space.spaces.items()}
            return {
                "type": "object",
                "properties": parts,
                "required": list(parts),
                "space": {"type": "Dict", "order": list(parts)},
            }
        if isinstance(space, s.Tuple):
            parts = [self.schema(v) for v in space.spaces]
            return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts), "space": {"type": "Tuple"}}
        if isinstance(space, s.Text):
            return {
                "type": "string",
                "minLength": space.min_length,
                "maxLength": space.max_length,
                "space": {"type": "Text", "min_length": space.min_length, "max_length": space.max_length, "charset": "".join(sorted(space.character_set))},
            }
        if isinstance(space, s.Box):
            return self.typed(space, {"type": "Box", "low": space.low, "high": space.high})
        if isinstance(space, s.MultiDiscrete):
            return self.typed(space, {"type": "MultiDiscrete", "nvec": space.nvec, "start": space.start})
        if isinstance(space, s.MultiBinary):
            return self.typed(space, {"type": "MultiBinary", "n": space.n})
        if isinstance(space, s.Sequence):
            return {"type": "array", "items": self.schema(space.feature_space), "space": {"type": "Sequence", "stack": bool(space.stack)}}
        if isinstance(space, s.OneOf):
            return {"type": "array", "oneOf": [self.schema(v) for v in space.spaces], "space": {"type": "OneOf"}}
        raise TypeError("spaces of type %s cannot be carried" % type(space).__name__)

    def typed(self, space, kind):
        dtype, shape = space.dtype.newbyteorder("<").str, list(space.shape)
        return {
            "type": "object",
            "properties": {"$array": {"const": dtype}, "shape": {"const": shape}},
            "required": ["$array", "shape"],
            "space": {**kind, "dtype": dtype, "shape": shape},
        }


class BadAction(Exception):
    pass


# What leaves everything as it was.
REFUSALS = {
    BadAction: "bad_action",
    Unsupported: "snapshot_unsupported",
    TooLarge: "snapshot_too_large",
    BadSnapshot: "bad_snapshot",
}


def plain(v):
    return v is None or isinstance(v, (bool, int, float, str)) or isinstance(v, (list, tuple)) and all(map(plain, v))


main()
