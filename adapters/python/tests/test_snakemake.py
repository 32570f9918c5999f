"""Real workflows, with the references that they submit held against the files that their processes open."""

from __future__ import annotations

import signal
import socket
import subprocess
import textwrap
from pathlib import Path

import pytest
from support import Audit, Recorder, environment, program, run

SAMPLES = [f"s{index:02}" for index in range(12)]


class Workflow:
    def __init__(self, directory: Path, data: Path, recorder: Recorder) -> None:
        self.directory = directory / "work"
        self.directory.mkdir()
        self.data = data
        self.recorder = recorder
        self.audit = Audit(directory / "strace.log", data)

    def write(self, text: str, name: str = "Snakefile") -> None:
        header = f'D = "{self.data}"\n' if name == "Snakefile" else ""
        (self.directory / name).write_text(header + textwrap.dedent(text))

    def options(self) -> dict[str, object]:
        return {"cwd": self.directory, "env": environment(self.recorder)}

    def command(self, *arguments: str) -> list[str]:
        return [program("snakemake"), "--cores", "2", *arguments]

    def run(self, *arguments: str, status: int = 0) -> str:
        ended = run(self.command(*arguments), **self.options())
        assert ended.returncode == status, ended.stdout
        return ended.stdout

    def run_audited(self, *arguments: str, status: int = 0) -> dict[str, list[set[str]]]:
        ended = run(Audit.command(self.audit.log, self.command(*arguments)), **self.options())
        assert ended.returncode == status, ended.stdout
        return self.audit.parse().files_by_output(self.directory / "out")

    def referenced(self) -> dict[str, set[str]]:
        """Returns the files of each task that reads some."""
        tasks = self.recorder.tasks()
        return {task: {path for path, _ in references} for task, references in tasks.items() if references}


@pytest.fixture
def workflow(tmp_path: Path, data: Path, recorder: Recorder) -> Workflow:
    return Workflow(tmp_path, data, recorder)


def samples(data: Path) -> None:
    (data / "genome").mkdir()
    (data / "genome" / "ref.fa").write_text("ACGT" * 100)
    (data / "fastq").mkdir()
    for sample in SAMPLES:
        (data / "fastq" / f"{sample}.fq").write_text(sample * 100)


SAMPLES_SNAKEFILE = """
    SAMPLES = [f"s{i:02}" for i in range(12)]
    rule all:
        input: "out/report"
    rule align:
        input: ref=D + "/genome/ref.fa", fq=D + "/fastq/{sample}.fq"
        output: temp("out/{sample}.bam")
        shell: "cat {input} > {output}"
    rule check:
        input: bam="out/{sample}.bam", fq=D + "/fastq/{sample}.fq"
        output: protected("out/{sample}.ok")
        shell: "cat {input} > {output}"
    rule merge:
        input: expand("out/{sample}.ok", sample=SAMPLES), ref=D + "/genome/ref.fa"
        output: "out/merged"
        run:
            with open(output[0], "w") as out:
                for path in input:
                    out.write(open(path).read())
    rule report:
        input: merged="out/merged", ref=D + "/genome/ref.fa"
        output: "out/report"
        script: "report.py"
"""


def output_of(task: str) -> str:
    rule, _, wildcards = task.partition("/")
    suffix = {"align": ".bam", "check": ".ok"}.get(rule)
    return wildcards.partition("=")[2] + suffix if suffix else {"merge": "merged", "report": "report"}[rule]


def test_samples_over_a_shared_reference(workflow: Workflow) -> None:
    samples(workflow.data)
    workflow.write(SAMPLES_SNAKEFILE)
    workflow.write(
        """
        with open(snakemake.output[0], "w") as out:
            for path in snakemake.input:
                out.write(open(path).read()[:10])
        """,
        "report.py",
    )
    opened = workflow.run_audited()
    referenced = workflow.referenced()
    assert len(referenced) == 12 + 12 + 2
    for task, files in referenced.items():
        assert opened[output_of(task)] == [files], task
    reads = sum(len(files) for runs in opened.values() for files in runs)
    assert reads == sum(map(len, referenced.values())) == 12 * 2 + 12 + 2
    (submission,) = workflow.recorder.ops("submit")
    assert submission["app"] == "daily"
    assert submission["dataset"] == "warehouse"
    after = {task["id"]: task["after"] for task in submission["tasks"]}
    assert after["check/sample=s03"] == ["align/sample=s03"]
    assert after["merge"] == [f"check/sample={sample}" for sample in SAMPLES]
    # Each task follows those it needs.
    seen: set[str] = set()
    for task, earlier in after.items():
        assert seen.issuperset(earlier)
        seen.add(task)
    assert len(workflow.recorder.ops("done")) == len(after)
    workflow.recorder.assert_settled()


def test_a_run_with_half_of_it_done_submits_the_other_half(workflow: Workflow) -> None:
    samples(workflow.data)
    workflow.write(SAMPLES_SNAKEFILE)
    workflow.write("open(snakemake.output[0], 'w').write(open(snakemake.input.ref).read())", "report.py")
    workflow.run("--notemp", *(f"out/{sample}.ok" for sample in SAMPLES[:6]))
    assert len(workflow.referenced()) == 12
    first = set(workflow.referenced())
    opened = workflow.run_audited("--rerun-incomplete", "--notemp")
    second = workflow.recorder.submitted[workflow.recorder.lines[-1]["job"]][0]
    assert {task for task, references in second.items() if references}.isdisjoint(first)
    for task, references in second.items():
        if references:
            assert opened[output_of(task)] == [{path for path, _ in references}], task
    assert len(workflow.recorder.ops("end")) == 2
    workflow.recorder.assert_settled()
    # Nothing is left to do, and nothing is said.
    before = len(workflow.recorder.lines)
    workflow.run()
    assert len(workflow.recorder.lines) == before


def test_task_ids_are_the_same_in_each_run(workflow: Workflow) -> None:
    samples(workflow.data)
    workflow.write(SAMPLES_SNAKEFILE)
    workflow.write("open(snakemake.output[0], 'w')", "report.py")
    workflow.run()
    workflow.run("--forceall")
    first, second = workflow.recorder.ops("submit")
    assert first["tasks"] == second["tasks"]
    assert first["files"] == second["files"]
    assert first["job"] != second["job"]


def test_nightly_partitions_are_read_as_directories(workflow: Workflow) -> None:
    for day in range(7):
        partition = workflow.data / f"day={day}" / "hour=0"
        partition.mkdir(parents=True)
        for part in range(3):
            (partition / f"part-{part}").write_text(f"{day} {part}")
    workflow.write(
        """
        rule all:
            input: expand("out/{day}", day=range(2, 7))
        rule night:
            input: lambda w: [f"{D}/day={int(w.day) - back}" for back in range(3)]
            output: "out/{day}"
            shell: "cat $(find {input} -type f) > {output}"
        """
    )
    opened = workflow.run_audited()
    referenced = workflow.referenced()
    assert len(referenced) == 5
    for task, files in referenced.items():
        assert len(files) == 9
        assert opened[task.partition("=")[2]] == [files]
    workflow.recorder.assert_settled()


def test_a_checkpoint_submits_the_remaining_tasks_again(workflow: Workflow) -> None:
    for index in range(6):
        (workflow.data / f"c{index}").write_text(f"chunk {index}")
    (workflow.data / "index").write_text("c1 c3 c5")
    workflow.write(
        """
        def chosen(wildcards):
            with checkpoints.choose.get().output[0].open() as names:
                return [f"out/{name}.done" for name in names.read().split()]
        rule all:
            input: "out/all", "out/other"
        checkpoint choose:
            input: D + "/index"
            output: "out/chosen"
            shell: "cat {input} > {output}"
        rule work:
            input: D + "/{name}"
            output: "out/{name}.done"
            shell: "cat {input} > {output}"
        rule gather:
            input: chosen, D + "/index"
            output: "out/all"
            shell: "cat {input} > {output}"
        rule other:
            input: D + "/c0"
            output: "out/other"
            shell: "cat {input} > {output}"
        """
    )
    opened = workflow.run_audited()
    outputs = {"choose": "chosen", "gather": "all", "other": "other"}
    referenced = workflow.referenced()
    assert set(referenced) == {*outputs, "work/name=c1", "work/name=c3", "work/name=c5"}
    for task, files in referenced.items():
        output = outputs.get(task) or task.partition("=")[2] + ".done"
        assert opened[output] == [files], task
    (job,) = workflow.recorder.submitted
    attempts = workflow.recorder.submitted[job]
    assert len(attempts) == 2
    assert "choose" in attempts[0]
    assert "choose" not in attempts[1]
    workflow.recorder.assert_settled()


def test_a_failed_job_that_is_restarted_keeps_its_references(workflow: Workflow) -> None:
    (workflow.data / "a").write_text("a")
    workflow.write(
        """
        rule all:
            input: "out/a"
        rule flaky:
            input: D + "/a"
            output: "out/a"
            retries: 2
            shell: "cat {input} > {output}; echo x >> tries; test $(wc -l < tries) -gt 2"
        """
    )
    opened = workflow.run_audited()
    assert opened["a"] == [{"a"}, {"a"}, {"a"}]
    assert [line["task"] for line in workflow.recorder.ops("taskfail")] == ["flaky", "flaky"]
    assert len(workflow.recorder.ops("submit")) == 1
    workflow.recorder.assert_settled()


KEEP_GOING = """
    rule all:
        input: "out/b2", "out/g2"
    rule bad:
        input: D + "/a"
        output: "out/b"
        retries: 1
        shell: "cat {input} > {output}; false"
    rule below_bad:
        input: "out/b", D + "/shared"
        output: "out/b2"
        shell: "cat {input} > {output}"
    rule good:
        input: D + "/a"
        output: "out/g"
        shell: "until test -e go; do sleep 0.1; done; cat {input} > {output}"
    rule below_good:
        input: "out/g", D + "/shared"
        output: "out/g2"
        shell: "cat {input} > {output}"
"""


def test_keep_going_releases_what_can_not_run_any_more(workflow: Workflow) -> None:
    for name in ("a", "shared"):
        (workflow.data / name).write_text(name)
    workflow.write(KEEP_GOING)
    started = subprocess.Popen(
        workflow.command("--keep-going"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **workflow.options(),
    )
    # The job below the bad one holds the shared file until the bad one has failed twice, and then never more.
    while not any(line.get("task") == "below_bad" for line in list(workflow.recorder.ops("done"))):
        assert started.poll() is None
    held = {task for _, task in workflow.recorder.held}
    assert {"good", "below_good"} <= held
    assert held.isdisjoint({"bad", "below_bad"})
    (workflow.directory / "go").touch()
    started.communicate()
    assert started.returncode == 1
    assert len(workflow.recorder.ops("taskfail")) == 1
    workflow.recorder.assert_settled()


def test_a_failure_without_keep_going_ends_the_job(workflow: Workflow) -> None:
    for name in ("a", "shared"):
        (workflow.data / name).write_text(name)
    workflow.write(KEEP_GOING)
    (workflow.directory / "go").touch()
    workflow.run(status=1)
    assert workflow.recorder.lines[-1]["op"] == "end"
    workflow.recorder.assert_settled()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_job(workflow: Workflow, number: int) -> None:
    (workflow.data / "a").write_text("a")
    workflow.write(
        """
        rule all:
            input: "out/1", "out/2"
        rule slow:
            input: D + "/a"
            output: "out/{n}"
            shell: "cat {input} > {output}; touch started; sleep 2"
        """
    )
    started = subprocess.Popen(
        workflow.command("--cores", "1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **workflow.options(),
    )
    # The sender's thread may be later than the first job.
    while not (workflow.directory / "started").exists() or len(workflow.recorder.held) < 3:
        assert started.poll() is None
    started.send_signal(number)
    started.communicate()
    assert workflow.recorder.lines[-1]["op"] == "end"
    workflow.recorder.assert_settled()


@pytest.mark.parametrize("quiet", ["all", "progress"])
def test_a_quiet_run_says_the_same(workflow: Workflow, quiet: str) -> None:
    samples(workflow.data)
    workflow.write(SAMPLES_SNAKEFILE)
    workflow.write("open(snakemake.output[0], 'w')", "report.py")
    workflow.run("--quiet", quiet)
    assert len(workflow.recorder.ops("done")) == 12 + 12 + 3
    workflow.recorder.assert_settled()


@pytest.mark.parametrize("option", ["--dry-run", "--touch"])
def test_a_run_that_reads_nothing_says_nothing(workflow: Workflow, option: str) -> None:
    samples(workflow.data)
    workflow.write(SAMPLES_SNAKEFILE)
    workflow.write("open(snakemake.output[0], 'w')", "report.py")
    if option == "--touch":
        workflow.run("--notemp")
    before = len(workflow.recorder.lines)
    workflow.run(option, "--forceall")
    assert len(workflow.recorder.lines) == before


def test_the_logger_may_be_named_and_a_batch_may_be_chosen(workflow: Workflow) -> None:
    samples(workflow.data)
    workflow.write(SAMPLES_SNAKEFILE)
    workflow.run("--logger", "copperfs", "--batch", "merge=1/3", "--notemp")
    assert len(workflow.referenced()) == 8
    workflow.recorder.assert_settled()


def test_groups_on_a_remote_executor(workflow: Workflow) -> None:
    samples(workflow.data)
    workflow.write(SAMPLES_SNAKEFILE)
    workflow.write("open(snakemake.output[0], 'w').write(open(snakemake.input.ref).read())", "report.py")
    ended = run(
        [
            program("snakemake"),
            *("--executor", "cluster-generic", "--cluster-generic-submit-cmd", "sh", "--jobs", "4"),
            *("--groups", "align=one", "check=one", "--group-components", "one=4", "--notemp"),
        ],
        **workflow.options(),
    )
    assert ended.returncode == 0, ended.stdout
    # The workflow runs as one job here, although Snakemake starts itself again for each group.
    assert len(workflow.recorder.ops("submit")) == 1
    assert len(workflow.recorder.ops("done")) == 12 + 12 + 3
    workflow.recorder.assert_settled()


@pytest.mark.parametrize("trouble", ["absent", "hangs"])
def test_the_workflow_runs_without_an_answer(workflow: Workflow, trouble: str, tmp_path: Path) -> None:
    (workflow.data / "a").write_text("a")
    workflow.write(
        """
        rule all:
            input: expand("out/{n}", n=range(20))
        rule one:
            input: D + "/a"
            output: "out/{n}"
            shell: "cat {input} > {output}"
        """
    )
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        if trouble == "hangs":
            silent.bind(str(path))
            silent.listen()
        options = workflow.options()
        options["env"] = environment(workflow.recorder, COPPERFS_LRC_SOCKET=str(path))
        ended = run(workflow.command(), **options)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("copperfs: no reference counts") == 1
    assert len(list((workflow.directory / "out").iterdir())) == 20
