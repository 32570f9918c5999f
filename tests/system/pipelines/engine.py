"""An engine of its own, as `copperfs lrc run --engine none` starts it: submits jobs and does what its arguments say."""

import json
import os
import socket
import sys
import time

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["COPPERFS_LRC_SOCKET"])
stream = connection.makefile("rw")


def tell(op, **fields):
    stream.write(json.dumps({"v": 1, "op": op, **fields}) + "\n")
    stream.flush()
    return json.loads(stream.readline())


# Names that no earlier run has used: an attempt that is not above the highest one is ignored, also after its end.
FIRST, SECOND = f"first-{os.getpid()}", f"second-{os.getpid()}"


def submit(job, files):
    tasks = [{"id": f"t/{at}", "in": [at]} for at in range(len(files))]
    return tell("submit", job=job, files=files, tasks=tasks)


files = sorted(
    os.path.relpath(os.path.join(top, name), os.environ["COPPERFS_LRC_ROOT"])
    for top, _, names in os.walk(os.environ["COPPERFS_LRC_ROOT"])
    for name in names
)
say = {name: os.environ[name] for name in os.environ if name.startswith("COPPERFS_LRC_")}
say["submitted"] = [submit(FIRST, files), submit(SECOND, files[:3])]
say["done"] = tell("done", job=FIRST, task="t/0")
say["wrong"] = tell("submit", job="third", files=["a"], tasks=[{"id": "t", "in": [1]}])
say["again"] = submit(SECOND, files)
print(json.dumps(say), flush=True)
for word in sys.argv[1:]:
    if word == "wait":
        time.sleep(600)
    elif word == "abort":
        os.abort()
    elif word.startswith("until="):
        while not os.path.exists(word.split("=", 1)[1]):
            time.sleep(0.05)
    elif word == "end":
        print(json.dumps(tell("end", job=FIRST)), flush=True)
    else:
        sys.exit(int(word))
