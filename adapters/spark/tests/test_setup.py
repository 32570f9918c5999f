"""The settings of README.md with each way to start Spark, and a run that does not answer."""

import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import harness
import pyspark
import pytest

SPARK = Path(pyspark.__file__).parent


def test_the_jar_is_made_of_this_source_only():
    listing = subprocess.run(["jar", "tf", harness.jar()], capture_output=True, text=True, check=True).stdout
    assert "copperfs/spark/LrcListener.class" in listing
    assert all(name.startswith(("META-INF/", "copperfs/")) for name in listing.split())


@pytest.mark.parametrize("start", ["python", "spark-submit", "spark-submit --properties-file"])
def test_ways_to_start_spark(run, tmp_path, start):
    command = None
    env = {}
    if start != "python":
        command = [str(SPARK / "bin" / "spark-submit")]
    if start.endswith("--properties-file"):
        # Such a file takes the place of spark-defaults.conf, in 3.5 at least.
        properties = tmp_path / "mine.conf"
        properties.write_text("spark.master local[2]\nspark.ui.enabled false\n")
        command += ["--properties-file", str(properties)]
        env["SPARK_SUBMIT_OPTS"] = "-Dspark.extraListeners=copperfs.spark.LrcListener"
    ended = run("queries.py", args=["aggregate"], command=command, env=env, events=False)
    assert ended.connections == 1
    (submission,) = [line for line in ended.lines if line["op"] == "submit"]
    assert len(submission["files"]) == 16
    assert ended.counts.live == {} and set(ended.counts.count.values()) == {0}


def test_settings_of_the_user_stay(run, tmp_path):
    """Listeners are appended, and spark-env.sh keeps the class path of the user."""
    defaults = {"spark.extraListeners": "org.apache.spark.scheduler.StatsReportListener"}
    ended = run(
        "queries.py",
        args=["aggregate"],
        defaults=defaults,
        env={"SPARK_DIST_CLASSPATH": str(tmp_path)},
    )
    assert ended.connections == 1
    assert "Finished stage" in ended.log_text


@pytest.mark.parametrize("fault", ["absent", "refuses", "hangs", "closes"])
def test_spark_goes_on_without_the_run(run, tmp_path, fault):
    path = f"/tmp/copperfs-fault-{os.getpid()}.sock"
    listener = socket.socket(socket.AF_UNIX)
    if fault != "absent":
        listener.bind(path)
    if fault in ("hangs", "closes"):
        listener.listen()
    kept = []

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if fault == "closes":
                connection.close()
            else:
                kept.append(connection)

    thread = threading.Thread(target=accept)
    if fault in ("hangs", "closes"):
        thread.start()
    try:
        ended = run("queries.py", args=["aggregate", "rdd_text"], env={"COPPERFS_LRC_SOCKET": path})
    finally:
        if thread.is_alive():
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
        listener.close()
        for connection in kept:
            connection.close()
        Path(path).unlink(missing_ok=True)
    assert ended.result.stdout.count("ran ") == 2
    assert len([line for line in ended.warnings if "copperfs:" in line]) == 1


def test_without_the_variables_there_is_one_warning(run):
    ended = run("queries.py", args=["aggregate"], env={"COPPERFS_LRC_ROOT": None})
    assert ended.connections == 0
    assert len([line for line in ended.warnings if "copperfs:" in line]) == 1


def test_files_by_another_name_of_the_directory(run, root, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(root)
    ended = run("queries.py", args=["pruned_days"], data=link)
    assert len([line for line in ended.lines if line["op"] == "submit"][0]["tasks"]) == 4


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not there: the opens were NOT checked")
def test_the_kernel_sees_the_same_files(run, root, tmp_path):
    """Independent of Spark: the data files that its processes open are those of the submission."""
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-qq", "-e", "trace=openat", "-o", str(trace)]
    if subprocess.run([*strace, "true"], capture_output=True).returncode != 0:
        pytest.skip("strace may not trace here: the opens were NOT checked")
    ended = run("queries.py", args=["pruned_days"], strace=strace)
    opens = [line.split('"')[1] for line in trace.read_text(errors="replace").splitlines() if '"' in line]
    opened = {}
    for path in opens:
        if path.startswith(f"{root}/sales/") and path.endswith(".parquet"):
            name = path.removeprefix(f"{root}/")
            opened[name] = opened.get(name, 0) + 1
    (submission,) = [line for line in ended.lines if line["op"] == "submit"]
    # Spark reads the schema from the footer of one more file, before there is a plan.
    schema = set(opened) - set(submission["files"])
    assert len(schema) <= 1 and set(submission["files"]) <= set(opened)
    for name in submission["files"]:
        tasks = sum(task["in"][0][0] == submission["files"].index(name) for task in submission["tasks"])
        assert opened[name] >= tasks
