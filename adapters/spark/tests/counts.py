"""A reference model of the contract: it holds the counts, and refuses lines that make no sense."""

from collections import Counter, defaultdict


class Counts:
    """Plays recorded lines. `finished` holds the inputs of the tasks that were reported as done."""

    def __init__(self, lines):
        self.count = Counter()
        self.live = {}
        self.attempt = {}
        self.submissions = defaultdict(list)
        self.finished = defaultdict(Counter)
        self.failed = Counter()
        for message in lines:
            assert message["v"] == 1
            getattr(self, message["op"])(message)
            assert min(self.count.values(), default=0) >= 0, f"a count below 0 after {message}"

    def submit(self, message):
        job, attempt = message["job"], message["attempt"]
        assert attempt > self.attempt.get(job, -1), f"{job}: attempt {attempt} is not a new one"
        assert job in self.live or attempt == 0, f"{job} was submitted after its end"
        self.attempt[job] = attempt
        before = self.live.get(job, {})
        for task in before.values():
            self._release(task)
        files = message["files"]
        assert len(set(files)) == len(files)
        tasks = {}
        for task in message["tasks"]:
            assert task["id"] not in tasks, f"{job}: {task['id']} twice"
            inputs = Counter((files[i], offset, length) for i, offset, length in task["in"])
            assert inputs and all(length > 0 for _, _, length in inputs)
            tasks[task["id"]] = {"inputs": inputs, "held": True, "ended": False}
            self.count.update(set(inputs))
        self.live[job] = tasks
        # An attempt of an execution lists the finished tasks too, and reports them as done again.
        # One that repeats a stage lists only the tasks that are left.
        if "/stage-" not in job:
            self.finished[job] = Counter()
        self.submissions[job].append({name: task["inputs"] for name, task in tasks.items()})

    def done(self, message):
        task = self.live[message["job"]][message["task"]]
        assert not task["ended"], f"done twice: {message}"
        task["ended"] = True
        self._release(task)
        self.finished[message["job"]].update(task["inputs"])

    def taskfail(self, message):
        task = self.live[message["job"]][message["task"]]
        assert not task["ended"], f"failed after its end: {message}"
        self.failed[message["job"]] += 1

    def end(self, message):
        for task in self.live.pop(message["job"]).values():
            self._release(task)

    def _release(self, task):
        if task["held"]:
            task["held"] = False
            self.count.subtract(set(task["inputs"]))

    def finished_of(self, jobs):
        """Returns the inputs of the finished tasks of these jobs and of their repeated stages."""
        total = Counter()
        for job, inputs in self.finished.items():
            if job.split("/stage-")[0] in jobs:
                total += inputs
        return total
