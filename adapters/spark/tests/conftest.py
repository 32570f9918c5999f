import contextlib

import cluster
import dataset
import harness
import pytest


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "warehouse"
    root.mkdir()
    dataset.write(root)
    return root


@pytest.fixture(scope="session")
def run(root, tmp_path_factory):
    """Runs an application of `apps` to its end."""
    works = tmp_path_factory.mktemp("runs")

    def run(app, **options):
        work = works / str(sum(1 for _ in works.iterdir()))
        return harness.Run(app, work, root, **options)

    return run


@pytest.fixture(scope="session")
def queries(run):
    return run("queries.py")


@pytest.fixture(scope="session")
def on_cluster(run, tmp_path_factory):
    speculation = {
        "spark.executor.memory": "700m",
        # More tasks than processors, so that some fetch their input after an executor is lost.
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.speculation": "true",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "500ms",
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "200ms",
    }
    with contextlib.closing(cluster.Cluster(tmp_path_factory.mktemp("cluster"))) as started:
        yield run("on_cluster.py", cluster=started, defaults=speculation)
