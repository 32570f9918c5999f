"""A standalone Spark cluster of a master and two workers, on loopback addresses.

Unlike `local-cluster` its workers have different hosts, without which Spark never speculates.
"""

import os
import re
import subprocess
import time

import pyspark

LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{UNIX_MILLIS} [%t] %X{mdc.taskName} %X{task_name} %m%n
logger.scan.name = org.apache.spark.sql.execution.datasources
logger.scan.level = info
logger.rdd.name = org.apache.spark.rdd
logger.rdd.level = info
logger.deploy.name = org.apache.spark.deploy
logger.deploy.level = info
"""


class Cluster:
    def __init__(self, work):
        self._work = work
        self._processes = []
        (work / "conf").mkdir(parents=True, exist_ok=True)
        (work / "conf" / "log4j2.properties").write_text(LOG4J)
        try:
            master = self._start("master", "127.0.0.1", "master.Master", "--host", "127.0.0.1", "--port", "0")
            self.url = self._wait(master, r"Starting Spark master at (spark://\S+)")
            for name, host in ("worker-1", "127.0.0.1"), ("worker-2", "127.0.0.2"):
                # The directory becomes the working directory of the executors.
                options = ["--host", host, "--cores", "2", "--memory", "700m", "--work-dir", str(work / "executors")]
                self._wait(self._start(name, host, "worker.Worker", *options, self.url), "Successfully registered")
        except BaseException:
            self.close()
            raise

    def _start(self, name, host, main, *options):
        log = self._work / f"{name}.log"
        home = os.path.dirname(pyspark.__file__)
        environment = {
            **os.environ,
            "SPARK_HOME": home,
            "SPARK_CONF_DIR": str(self._work / "conf"),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with log.open("w") as output:
            process = subprocess.Popen(
                [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{main}", "--webui-port", "0", *options],
                env=environment,
                cwd=self._work,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process, log

    @staticmethod
    def _wait(started, pattern):
        process, log = started
        while process.poll() is None:
            if match := re.search(pattern, log.read_text()):
                return match[1] if match.groups() else match[0]
            time.sleep(0.1)
        raise AssertionError(f"{log.name} has ended: {log.read_text()[-2000:]}")

    def executor_logs(self):
        return sorted(self._work.glob("executors/*/*/stderr"))

    def close(self):
        for process in reversed(self._processes):
            process.terminate()
            process.wait()
