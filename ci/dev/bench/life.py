# Takes the container of the bundle in the folder of its first argument through its whole life:
# create, start, exit, delete. The other arguments are the runtime. It is a subreaper: what the
# runtime leaves becomes its child, so that the processor time of hooks in the container counts.
# A create that is stopped half-way leaves cgroups that no delete removes.
import ctypes, os, signal, sys

folder, runtime = sys.argv[1], sys.argv[2:]
bundle, name = folder + "/bundle", "slipway-bench-%d" % os.getpid()
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
signal.signal(signal.SIGTERM, signal.SIG_IGN)
# The container inherits the output: a pipe would stay open as long as it lives.
errors, out = os.dup(2), os.open(bundle + "/output", os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
os.dup2(out, 1)
os.dup2(out, 2)


def call(*args):
    return os.spawnvp(os.P_WAIT, runtime[0], [*runtime, "--root", folder + "/state", *args])


failed = call("create", "--bundle", bundle, "--pid-file", bundle + "/pid", name)
if not failed:
    failed = call("start", name)
    if not failed:
        os.waitpid(int(open(bundle + "/pid").read()), 0)
    failed = call("delete", "--force", name) or failed
if failed:
    os.write(errors, open(bundle + "/output", "rb").read())
    sys.exit(1)
