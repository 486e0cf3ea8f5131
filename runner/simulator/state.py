"""Takes the state of a Gymnasium environment as bytes and puts it into another of its kind.

It stands before shim.py in the same program. A state holds what the wrappers count, what
the environment knows, and every generator of random numbers; not what is the same in all
environments of one simulator (pictures, functions, windows). How an environment is taken is
one of ways(); whether one works is not guessed but tried, by trial().
"""

import contextlib
import copy
import io
import pickle
import random
import sys
import types

FORM = "paddock-state/1"

# Attributes that are not state: links between wrappers, and descriptions.
CONSTANT = frozenset(["env", "spec", "_cached_spec", "metadata", "_metadata"])

# Where the types of windows, pictures and their like come from.
DRAWING = ("pygame", "glfw", "OpenGL", "mujoco.renderer", "gymnasium.envs.mujoco.mujoco_rendering")

# Methods by which an environment offers its state itself, and the arguments of the first.
OWN = {
    "get_state": ("set_state", ()),
    "clone_state": ("restore_state", (True,)),
    "__getstate__": ("__setstate__", ()),
}


class Unsupported(Exception):
    """The environment cannot be taken."""


class TooLarge(Exception):
    pass


class BadSnapshot(Exception):
    """The bytes are no state of such an environment. Nothing was done."""


class Bounded(io.BytesIO):
    """Memory that refuses to be more than so many bytes."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def write(self, data):
        if self.tell() + len(memoryview(data).cast("B")) > self.most:
            raise TooLarge("the snapshot has more than %d bytes (max_snapshot)" % self.most)
        return super().write(data)


class Writer(pickle.Pickler):
    """Pickles by value, but for what each environment has of its own: that goes by name."""

    def __init__(self, file, names):
        super().__init__(file, protocol=5)
        self.names = names

    def persistent_id(self, obj):
        return self.names.get(id(obj))


class Reader(pickle.Unpickler):
    def __init__(self, file, found):
        super().__init__(file)
        self.found = found

    def persistent_load(self, name):
        return self.found[name]


def layers(env):
    """The wrappers, the outermost first, and then what they wrap."""
    import gymnasium

    all = [env]
    while isinstance(all[-1], gymnasium.Wrapper):
        all.append(all[-1].env)
    return all


def fixed(value):
    """Whether a value stays what it is in each environment: what draws, and local functions."""
    if isinstance(value, (list, tuple, set)):
        return any(map(drawing, value))
    if isinstance(value, dict):
        return any(map(drawing, value.values()))
    return drawing(value) or isinstance(value, types.FunctionType) and "<" in value.__qualname__


def drawing(value):
    module = type(value).__module__
    return isinstance(value, types.ModuleType) or any(module == d or module.startswith(d + ".") for d in DRAWING)


# MuJoCo. A state that is put back must be the one that was, also in what a step leaves
# behind for the next one's reward: that lags by a substep, so computing it anew gives other
# numbers. So every array is kept beside the integration state, but for the rows of contacts
# and constraints: each step makes them anew, and as many as it needs.

SMALL = 1 << 16  # of a model, only arrays below this many bytes: not its pictures and meshes
ROWS = ("_", "efc_", "iefc_", "efm_")

_arrays = {}


def arrays(thing):
    """The names of the arrays of a struct of MuJoCo's."""
    import numpy as np

    kind = type(thing)
    if kind not in _arrays:
        _arrays[kind] = []
        for name in dir(thing):
            with contextlib.suppress(Exception):
                if not name.startswith(ROWS) and isinstance(getattr(thing, name), np.ndarray):
                    _arrays[kind].append(name)
    return _arrays[kind]


def pack(thing, below):
    """The arrays' sizes, and their bytes one after another."""
    import numpy as np

    found = (getattr(thing, name) for name in arrays(thing))
    parts = [a.tobytes() if a.nbytes < below else b"" for a in found]
    return np.array([len(p) for p in parts]), b"".join(parts)


def unpack(thing, packed):
    import numpy as np

    at = 0
    for name, size in zip(arrays(thing), packed[0].tolist()):
        mine = getattr(thing, name)
        if size and mine.nbytes == size:
            mine[...] = np.frombuffer(packed[1], mine.dtype, mine.size, at).reshape(mine.shape)
        at += size


def options(opt):
    """A model's options that are set as attributes: timestep, gravity, ..."""
    import numpy as np

    kept = {}
    for name in dir(opt):
        value = None if name.startswith("_") else getattr(opt, name)
        if isinstance(value, (np.ndarray, int, float)):
            kept[name] = copy.copy(value)
    return kept


def set_options(opt, kept):
    for name, value in kept.items():
        if hasattr(value, "shape"):
            getattr(opt, name)[...] = value
        elif getattr(opt, name) != value:
            setattr(opt, name, value)


class MuJoCo:
    """The models and data that are attributes of an environment's layers."""

    def __init__(self, all):
        self.models, self.data = {}, {}
        if "mujoco" not in sys.modules:
            return
        import mujoco

        self.lib, self.what = mujoco, mujoco.mjtState.mjSTATE_INTEGRATION
        for i, layer in enumerate(all):
            for name, value in vars(layer).items():
                if isinstance(value, mujoco.MjModel):
                    self.models[i, name] = value
                if isinstance(value, mujoco.MjData):
                    self.data[i, name] = value

    def named(self):
        return {("mujoco", *where): thing for where, thing in {**self.models, **self.data}.items()}

    def take(self):
        return (
            {where: (pack(m, SMALL), options(m.opt)) for where, m in self.models.items()},
            {where: (pack(d, sys.maxsize), self.state(d)) for where, d in self.data.items()},
        )

    def state(self, data):
        import numpy as np

        state = np.empty(self.lib.mj_stateSize(data.model, self.what))
        self.lib.mj_getState(data.model, data, state, self.what)
        return state

    def check(self, taken):
        models, data = taken
        if models.keys() != self.models.keys() or data.keys() != self.data.keys():
            raise BadSnapshot("the snapshot has other models")
        for where, m in self.models.items():
            mine = [a.nbytes if a.nbytes < SMALL else 0 for a in (getattr(m, n) for n in arrays(m))]
            if models[where][0][0].tolist() != mine:
                raise BadSnapshot("the snapshot's model has other sizes")
        for where, d in self.data.items():
            if data[where][1].size != self.lib.mj_stateSize(d.model, self.what):
                raise BadSnapshot("the snapshot's state is of another model")

    def put(self, taken):
        models, data = taken
        for where, m in self.models.items():
            packed, opt = models[where]
            unpack(m, packed)
            set_options(m.opt, opt)
        for where, d in self.data.items():
            packed, state = data[where]
            self.lib.mj_resetData(d.model, d)
            self.lib.mj_setState(d.model, d, state, self.what)
            self.lib.mj_forward(d.model, d)
            unpack(d, packed)


# A state of an environment.


def ways(env):
    """How the environment may be taken, the best first."""
    import gymnasium

    base = env.unwrapped
    found = []
    for get, (put, _) in OWN.items():
        theirs = getattr(type(base), get, None)
        if theirs is None or theirs is getattr(object, get, None) or not callable(getattr(type(base), put, None)):
            continue
        if getattr(type(base), put) is getattr(gymnasium.utils.EzPickle, put, None):
            continue  # gives how the environment was made, not what became of it
        found.append(get)
    return [*found, "attributes"]


def take(env, way, most, extra=None):
    """The environment's state as bytes, and something to keep with it."""
    import numpy as np

    all = layers(env)
    models = MuJoCo(all)
    held, kept = [], []
    for layer in all:
        own = way != "attributes" and layer is all[-1]
        names = [n for n in vars(layer) if n not in CONSTANT and (not own or n.startswith("_np_random"))]
        kept.append([n for n in names if fixed(vars(layer)[n])])
        held.append({n: vars(layer)[n] for n in names if n not in kept[-1]})
    state = {
        "form": FORM,
        "way": way,
        "layers": [type(layer).__qualname__ for layer in all],
        "held": held,
        "kept": kept,
        "own": None if way == "attributes" else getattr(all[-1], way)(*OWN[way][1]),
        "mujoco": models.take(),
        "random": (random.getstate(), np.random.get_state()),
        "extra": extra,
    }
    names = {id(layer): ("layer", i) for i, layer in enumerate(all)}
    names.update({id(thing): name for name, thing in models.named().items()})
    file = Bounded(most)
    try:
        Writer(file, names).dump(state)
    except TooLarge:
        raise
    except Exception as e:
        raise Unsupported(guilty(all, held, names, e)) from e
    return file.getvalue()


def guilty(all, held, names, e):
    """What of the environment cannot be pickled."""
    for layer, attributes in zip(all, held):
        for name, value in attributes.items():
            try:
                Writer(io.BytesIO(), names).dump(value)
            except Exception as why:
                return "%s of %s cannot be kept: %s" % (name, type(layer).__name__, why)
    return "it cannot be kept: %s" % e


def put(env, data):
    """Put a state into the environment, and give back what was kept with it."""
    import numpy as np

    all = layers(env)
    models = MuJoCo(all)
    found = {("layer", i): layer for i, layer in enumerate(all)}
    try:
        state = Reader(io.BytesIO(data), {**found, **models.named()}).load()
        check(all, state)
        models.check(state["mujoco"])
    except BadSnapshot:
        raise
    except Exception as e:
        raise BadSnapshot("the snapshot cannot be read: %s: %s" % (type(e).__name__, e)) from e
    own = state["way"] != "attributes"
    for layer, held, kept in zip(all, state["held"], state["kept"]):
        mine = vars(layer)
        stays = CONSTANT | set(kept) | {n for n, v in mine.items() if fixed(v)}
        if not (own and layer is all[-1]):
            for name in [n for n in mine if n not in held and n not in stays]:
                del mine[name]
        mine.update({n: v for n, v in held.items() if n not in stays})
    if own:
        getattr(all[-1], OWN[state["way"]][0])(state["own"])
    models.put(state["mujoco"])
    random.setstate(state["random"][0])
    np.random.set_state(state["random"][1])
    return state["extra"]


def check(all, state):
    """Refuse a state of another form or of other layers."""
    if not isinstance(state, dict) or state.get("form") != FORM:
        raise BadSnapshot("the snapshot is of another form")
    if state["layers"] != [type(layer).__qualname__ for layer in all]:
        raise BadSnapshot("the snapshot is of %s" % " of ".join(state["layers"]))
    if state["way"] != "attributes" and state["way"] not in OWN:
        raise BadSnapshot("the snapshot was taken in another way")
    if len(state["held"]) != len(all) or len(state["kept"]) != len(all):
        raise BadSnapshot("the snapshot lacks a part")


# Trials. An environment that was put back must go on as the one that was taken: in itself
# after it went on, and in another that was begun otherwise; over the end of a rollout, too.


def trial(env, make, encode, most):
    """The first way that works, tried on an environment that is not used for anything else."""
    why = []
    other = make()
    try:
        for way in ways(env):
            try:
                fault = tried(env, other, way, encode, most)
            except Unsupported as e:
                fault = str(e)
            except TooLarge:
                raise
            except Exception as e:
                fault = "%s: %s" % (type(e).__name__, e)
            if fault is None:
                return way
            why.append("%s: %s" % (way, fault))
    finally:
        other.close()
    raise Unsupported("; ".join(why))


def tried(env, other, way, encode, most):
    space = copy.deepcopy(env.action_space)
    space.seed(1)
    actions = [space.sample() for _ in range(24)]
    other.reset(seed=2)
    walk(other, actions[:2], encode)
    env.reset(seed=1)
    walk(env, actions[:6], encode)
    taken = take(env, way, most)
    want = walk(env, actions[6:], encode)
    for which, name in ((env, "the same"), (other, "another")):
        put(which, taken)
        if walk(which, actions[6:], encode) != want:
            return "put back into %s environment it goes on otherwise" % name
    return None


def walk(env, actions, encode):
    """Step, into the next rollout in any case, and tell all that was seen."""
    seen = []
    for n, action in enumerate(actions):
        step = env.step(copy.deepcopy(action))
        seen.append(encode(step))
        if step[2] or step[3] or n == len(actions) - 4:
            seen.append(encode(env.reset()))
    return seen
