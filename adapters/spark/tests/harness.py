"""Runs a PySpark application with the adapter, set up as `copperfs lrc run` sets it up."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from counts import Counts
from reads import Log
from recorder import Recorder

HERE = Path(__file__).parent


@functools.cache
def jar():
    """Builds the adapter against the pyspark that runs the tests, and returns the jar."""
    out = Path(tempfile.mkdtemp(prefix="copperfs-spark-jar-")) / "copperfs-spark.jar"
    atexit.register(shutil.rmtree, out.parent)
    jars = Path(pyspark.__file__).parent / "jars"
    subprocess.run([HERE.parent / "build", "--jars", jars, "--out", out], check=True, stdout=subprocess.DEVNULL)
    return out


LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${{sys:copperfs.log:-{log}}}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{UNIX_MILLIS}} [%t] %X{{mdc.taskName}} %X{{task_name}} %m%n
logger.scan.name = org.apache.spark.sql.execution.datasources
logger.scan.level = info
logger.rdd.name = org.apache.spark.rdd
logger.rdd.level = info
logger.stats.name = org.apache.spark.scheduler.StatsReportListener
logger.stats.level = info
"""


class Run:
    """One application that has ended: its lines, and its reads."""

    def __init__(
        self,
        app,
        work,
        root,
        args=(),
        defaults=(),
        env=(),
        data=None,
        cluster=None,
        command=None,
        strace=(),
        listener=True,
        events=True,
    ):
        conf, event_logs = work / "conf", work / "events"
        conf.mkdir(parents=True)
        event_logs.mkdir()
        log = work / "log"
        (conf / "log4j2.properties").write_text(LOG4J.format(log=log))
        settings = {
            "spark.master": cluster.url if cluster else "local[4,3]",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.dir": f"file:{event_logs}",
            "spark.sql.warehouse.dir": f"{root}/tables",
            "spark.sql.shuffle.partitions": "8",
            # Files of some kilobytes are split and packed as large ones are.
            "spark.sql.files.maxPartitionBytes": "64k",
            "spark.sql.files.openCostInBytes": "1k",
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={work}",
        } | dict(defaults)
        if listener:
            listeners = [settings.get("spark.extraListeners"), "copperfs.spark.LrcListener"]
            settings["spark.extraListeners"] = ",".join(filter(None, listeners))
            (conf / "spark-env.sh").write_text(
                f'SPARK_DIST_CLASSPATH="${{SPARK_DIST_CLASSPATH:+$SPARK_DIST_CLASSPATH:}}{jar()}"\n'
            )
        text = "".join(f"{key} {value}\n" for key, value in settings.items())
        (conf / "spark-defaults.conf").write_text(text)
        # A socket's path has room for some 100 bytes only.
        directory = Path(tempfile.mkdtemp(prefix="copperfs-spark-"))
        recorder = Recorder(str(directory / "lrc.sock"))
        environment = {
            **os.environ,
            "SPARK_CONF_DIR": str(conf),
            "PYSPARK_PYTHON": sys.executable,
            "COPPERFS_LRC_SOCKET": recorder.path,
            "COPPERFS_LRC_DATASET": "warehouse",
            "COPPERFS_LRC_ROOT": str(root),
            "COPPERFS_LRC_APP": "test",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_HOME": None,
            "SPARK_ENV_LOADED": None,
            **dict(env),
        }
        start = command or [sys.executable]
        try:
            self.result = subprocess.run(
                [*strace, *start, str(HERE / "apps" / app), str(data or root), str(work), *args],
                env={name: value for name, value in environment.items() if value is not None},
                cwd=work,
                capture_output=True,
                text=True,
            )
        finally:
            recorder.close()
            shutil.rmtree(directory)
        assert self.result.returncode == 0, self.result.stdout + self.result.stderr[-8000:]
        self.connections = recorder.connections
        self.times = [at for at, _ in recorder.lines]
        self.lines = [message for _, message in recorder.lines]
        self.counts = Counts(self.lines)
        self.log_text = log.read_text() if log.exists() else ""
        self.warnings = [line for line in self.log_text.splitlines() if "copperfs" in line]
        if events:
            (event_log,) = [path for path in event_logs.iterdir() if path.is_file()]
            self.app = event_log.name
            executors = cluster.executor_logs() if cluster else []
            self.log = Log([log, *executors], event_log, root)

    def finished(self, scenario):
        return self.counts.finished_of(self.log.jobs(scenario, self.app))

    def submissions(self, scenario):
        """Returns, for each job of the scenario, the tasks of each attempt."""
        jobs = self.log.jobs(scenario, self.app)
        return {
            job.removeprefix(self.app + "/"): attempts
            for job, attempts in self.counts.submissions.items()
            if job.split("/stage-")[0] in jobs
        }
