"""Spark's own record of its reads: the executors' log names each file range that a task opens.

It is independent of the adapter: FileScanRDD, HadoopRDD and the readers of data source V2 log the
range at the time they open it, in the task. The event log tells how each task ended.
"""

import json
import re
import urllib.parse
from collections import Counter, defaultdict

# The layout in harness.py puts the thread and the task's name before the message.
SCAN = re.compile(r"Reading [Ff]ile (?:with length \d+ |split )?(?:name: )?path: (\S+?), range: (\d+)-(\d+)")
LINE = re.compile(r"\d{13} \[")
TID = re.compile(r"TID (\d+)")
SPLIT = re.compile(r"[Ii]nput split: (.*)$")
RANGE = re.compile(r"((?:file:)?/[^,]+?):(\d+)\+(\d+)")


def relative(uri, root):
    # A combined split shows plain paths, the others show URIs.
    path = urllib.parse.unquote(re.sub(r"^file:/+", "/", uri)) if uri.startswith("file:") else uri
    return path.removeprefix(root + "/") if path.startswith(root + "/") else None


class Log:
    """The tasks of one application: the ranges that each read, and how each ended."""

    def __init__(self, logs, event_log, root):
        self.root = root
        self.reads = defaultdict(Counter)
        self.ended = {}
        self.stage_job = {}
        self.job_scenario = {}
        self.job_execution = {}
        self.execution_scenario = {}
        self.started = {}
        self.executions = {}
        for log in logs:
            for line in log.read_text(errors="replace").splitlines():
                self._read(line, str(root))
        for line in event_log.read_text().splitlines():
            self._event(json.loads(line))

    def _read(self, line, root):
        # The end of an executor that is killed can repeat a part of a line.
        if not LINE.match(line):
            return
        tid = TID.search(line)
        found = []
        if match := SCAN.search(line):
            found = [(match[1], int(match[2]), int(match[3]) - int(match[2]))]
        elif match := SPLIT.search(line):
            found = [(uri, int(a), int(n)) for uri, a, n in RANGE.findall(match[1])]
        for uri, offset, length in found:
            path = relative(uri, root)
            if path is not None and length > 0:
                assert tid, f"a read without its task: {line}"
                self.reads[int(tid[1])][path, offset, length] += 1

    def _event(self, event):
        kind = event["Event"].rsplit(".", 1)[-1]
        if kind == "SparkListenerJobStart":
            properties = event["Properties"]
            job = event["Job ID"]
            self.job_scenario[job] = properties.get("spark.job.description", "")
            self.job_execution[job] = properties.get("spark.sql.execution.id")
            for stage in event["Stage IDs"]:
                self.stage_job.setdefault(stage, job)
        elif kind == "SparkListenerSQLExecutionStart":
            self.execution_scenario[event["executionId"]] = event["description"]
            self.executions[event["executionId"]] = event["time"]
        elif kind == "SparkListenerTaskStart":
            info = event["Task Info"]
            self.started[info["Task ID"]] = (event["Stage ID"], info["Launch Time"])
        elif kind == "SparkListenerTaskEnd":
            info = event["Task Info"]
            self.ended[info["Task ID"]] = {
                "key": (event["Stage ID"], event["Stage Attempt ID"], info["Partition ID"]),
                "reason": event["Task End Reason"]["Reason"],
                "finish": info["Finish Time"],
                "bytes": event.get("Task Metrics", {}).get("Input Metrics", {}).get("Bytes Read", 0),
            }

    def scenario(self, tid):
        return self.job_scenario[self.stage_job[self.started[tid][0]]]

    def jobs(self, scenario, app):
        """Returns the names of the adapter's jobs that belong to a scenario."""
        names = {f"{app}/sql-{i}" for i, name in self.execution_scenario.items() if name == scenario}
        return names | {f"{app}/job-{i}" for i, name in self.job_scenario.items() if name == scenario}

    def all_reads(self, scenario):
        """Returns the reads of all tasks, however they ended."""
        tasks = (tid for tid in self.started if self.scenario(tid) == scenario)
        return sum((self.reads[tid] for tid in tasks), Counter())

    def successful(self, scenario=None):
        """Returns the reads of the tasks that succeeded: of several copies of a task, the first."""
        total, seen = Counter(), set()
        for tid, end in sorted(self.ended.items(), key=lambda item: item[1]["finish"]):
            if scenario is not None and self.scenario(tid) != scenario:
                continue
            if end["reason"] == "Success" and end["key"] not in seen:
                seen.add(end["key"])
                total += self.reads[tid]
        return total
