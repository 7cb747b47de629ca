# Prints what pickles hold as JSON lines, for Slipway. Pickles come from outside and may name any
# function. Here they get objects that do nothing, of bitbake's classes, and what bitbake's
# own pickles need besides. Everything else is refused.
import base64
import io
import json
import pickle
import resource
import sys

MOST = 32 << 20  # values and characters of one answer
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


class Inert:
    def __new__(cls, *_, **__):
        return object.__new__(cls)

    def __setstate__(self, state):
        if isinstance(state, tuple) and len(state) == 2:
            state = state[1] if state[0] is None else state[0]
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __setitem__(self, key, value):  # of a class that is a dict
        self.__dict__[str(key)] = value

    def extend(self, _):  # of a class that is a list
        pass

    append = extend


ALLOWED = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "object"): Inert,
    ("collections", "OrderedDict"): dict,
    ("collections", "defaultdict"): lambda *_: {},
    ("copyreg", "_reconstructor"): lambda cls, *_: Inert.__new__(cls),
    ("re", "_compile"): lambda *_: None,  # the layers' patterns, in the tree of tasks
}


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module.startswith("bb."):
            return type(name, (Inert,), {"__module__": module})
        if (module, name) not in ALLOWED:
            raise ValueError(f"it names {module}.{name}, which is no part of an event; refused")
        return ALLOWED[module, name]


class Answer:
    """Copies values for an answer, within its limit: in a pickle one value may stand in many places."""

    def __init__(self):
        self.left = MOST

    def plain(self, value, depth=0):
        self.left -= len(value) if isinstance(value, str) else 1
        if self.left < 0 or depth > 20:
            raise ValueError("it holds too many values")
        if isinstance(value, Inert):
            value = value.__dict__
        if isinstance(value, dict):
            return {key: self.plain(v, depth + 1) for key, v in value.items() if isinstance(key, str)}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self.plain(v, depth + 1) for v in value]
        if isinstance(value, (int, float)) and not abs(value) < 1 << 63:
            return None
        return value if isinstance(value, (str, int, float)) else None


def read_event(line):
    fields = json.loads(line)
    event = Unpickler(io.BytesIO(base64.b64decode(fields["vars"].replace("\n", ""), validate=True))).load()
    if not isinstance(event, Inert) or type(event).__module__ + "." + type(event).__name__ != fields["class"]:
        raise ValueError("it holds something else")
    state = event.__dict__
    if "_depgraph" in state:
        state = {"_depgraph": {"tdepends": state["_depgraph"]["tdepends"]}}
    return {"state": Answer().plain(state)}


def read_events():
    for line in sys.stdin.buffer:
        try:
            answer = read_event(line)
        except Exception as error:
            answer = {"error": str(error)[:200] or type(error).__name__}
        print(json.dumps(answer), flush=True)


def read_cache():
    """Reads the version of a cache of recipes and bitbake's, then each recipe's name and what bitbake knows of it."""
    pickles = Unpickler(sys.stdin.buffer)
    if not all(isinstance(pickles.load(), str) for _ in range(2)):
        raise ValueError("no cache of recipes: it does not begin with its version")
    while sys.stdin.buffer.peek(1):
        recipe, info = pickles.load(), pickles.load()
        if not isinstance(recipe, str) or not isinstance(info, Inert):
            raise ValueError("it names something else than a recipe")
        answer = {"recipe": recipe, "depends": info.__dict__.get("file_depends"), "checksums": info.__dict__.get("file_checksums")}
        print(json.dumps(Answer().plain(answer)))


if sys.argv[1] == "events":
    read_events()
else:
    try:
        read_cache()
    except EOFError:
        sys.exit("it ends in the middle of a value")
    except Exception as error:
        sys.exit(str(error)[:200] or type(error).__name__)
