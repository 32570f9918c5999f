package copperfs.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.Resubmitted$;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext$;
import org.apache.spark.Success$;
import org.apache.spark.scheduler.DAGScheduler;
import org.apache.spark.scheduler.ShuffleMapStage;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerApplicationStart;
import org.apache.spark.scheduler.SparkListenerBlockManagerRemoved;
import org.apache.spark.scheduler.SparkListenerBlockUpdated;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.SparkListenerUnpersistRDD;
import org.apache.spark.scheduler.Stage;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.ui.SparkListenerSQLAdaptiveExecutionUpdate;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart;
import org.apache.spark.storage.BlockUpdatedInfo;
import org.apache.spark.storage.RDDBlockId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The listener of {@code spark.extraListeners}. Spark's event thread only picks up references here
 * and queues them. A thread of its own does the work.
 */
public final class LrcListener extends SparkListener {
  private static final Logger LOG = LoggerFactory.getLogger("copperfs.spark");
  /** When it is reached, further events are dropped. One warning is logged. */
  private static final int EVENTS_MAX = 100_000;
  /** The longest that the end of the application waits for the last lines. */
  private static final long CLOSE_MS_MAX = 2_000;
  /** Spark drops events when its own queue is full. Ends among them are noticed after this time. */
  private static final long SWEEP_MS = 10_000;
  /** Deep lineages are walked by recursion. */
  private static final long STACK_BYTES = 64L << 20;

  /** Null if this application is not run by copperfs. */
  private final String socketPath = System.getenv("COPPERFS_LRC_SOCKET");
  private final SparkConf conf;
  private final LinkedBlockingQueue<Runnable> events = new LinkedBlockingQueue<>(EVENTS_MAX);
  private Tracker tracker;
  private RunSocket socket;
  private Thread worker;
  private boolean warnedFull;
  private boolean warnedFailure;
  private volatile boolean ended;

  public LrcListener(SparkConf conf) {
    this.conf = conf;
  }

  @Override
  public void onApplicationStart(SparkListenerApplicationStart event) {
    String root = System.getenv("COPPERFS_LRC_ROOT");
    if (socketPath == null || root == null) {
      LOG.warn("copperfs: no reference counts for this application: "
          + "COPPERFS_LRC_SOCKET or COPPERFS_LRC_ROOT is not set");
      return;
    }
    String app = event.appId().isDefined() ? event.appId().get() : conf.get("spark.app.id", "app");
    try {
      socket = new RunSocket(socketPath);
      tracker = new Tracker(app, new Dataset(root), socket::send);
      worker = new Thread(null, this::work, "copperfs-spark", STACK_BYTES);
      worker.setDaemon(true);
      worker.start();
    } catch (RuntimeException | LinkageError error) {
      tracker = null;
      warn(error);
    }
  }

  private void work() {
    long swept = System.nanoTime();
    while (!ended || !events.isEmpty()) {
      try {
        Runnable event = events.poll(SWEEP_MS, TimeUnit.MILLISECONDS);
        if (event != null) {
          event.run();
        }
        if (events.isEmpty()) {
          tracker.flush();
        }
        if (System.nanoTime() - swept >= TimeUnit.MILLISECONDS.toNanos(SWEEP_MS)) {
          swept = System.nanoTime();
          tracker.endForgotten();
        }
      } catch (InterruptedException stop) {
        return;
      } catch (Exception | LinkageError | StackOverflowError error) {
        warn(error);
      }
    }
  }

  private void warn(Throwable error) {
    if (!warnedFailure) {
      warnedFailure = true;
      LOG.warn("copperfs: an event could not be counted", error);
    }
  }

  private void queue(Runnable event) {
    if (!events.offer(event) && !warnedFull) {
      warnedFull = true;
      LOG.warn("copperfs: Spark's events come too fast: some are not counted");
    }
  }

  @Override
  public void onOtherEvent(SparkListenerEvent event) {
    if (tracker == null) {
      return;
    }
    if (event instanceof SparkListenerSQLExecutionStart start) {
      long id = start.executionId();
      QueryExecution query = SQLExecution.getQueryExecution(id);
      queue(() -> tracker.executionStarted(id, query));
    } else if (event instanceof SparkListenerSQLAdaptiveExecutionUpdate update) {
      long id = update.executionId();
      queue(() -> tracker.planChanged(id));
    } else if (event instanceof SparkListenerSQLExecutionEnd end) {
      long id = end.executionId();
      queue(() -> tracker.executionEnded(id));
    }
  }

  @Override
  public void onJobStart(SparkListenerJobStart event) {
    if (tracker == null) {
      return;
    }
    List<Tracker.SeenStage> stages = new ArrayList<>();
    for (StageInfo info : Scala.<StageInfo>items(event.stageInfos())) {
      Stage stage = stage(info.stageId());
      if (stage != null) {
        stages.add(new Tracker.SeenStage(stage,
            stage instanceof ShuffleMapStage map ? map.numAvailableOutputs() : 0));
      }
    }
    int job = event.jobId();
    String execution = event.properties() == null
        ? null : event.properties().getProperty("spark.sql.execution.id");
    queue(() -> tracker.jobStarted(job, execution, stages));
  }

  /**
   * The scheduler keeps its stages in a map of its own thread. Reading it from here can miss an
   * entry while the map grows, but never loops: the chains only ever lose entries. A miss at the
   * start of a job is made good when the stage starts.
   */
  private static Stage stage(int id) {
    scala.Option<org.apache.spark.SparkContext> context = SparkContext$.MODULE$.getActive();
    DAGScheduler scheduler = context.isEmpty() ? null : context.get().dagScheduler();
    if (scheduler == null) {
      return null;
    }
    scala.Option<Stage> stage = scheduler.stageIdToStage().get(id);
    return stage.isEmpty() ? null : stage.get();
  }

  @Override
  public void onStageSubmitted(SparkListenerStageSubmitted event) {
    if (tracker == null) {
      return;
    }
    StageInfo info = event.stageInfo();
    Stage stage = stage(info.stageId());
    if (stage != null) {
      int attempt = info.attemptNumber();
      boolean all = attempt == 0 && info.numTasks() == stage.numPartitions();
      int[] partitions = all ? null : Tracker.missing(stage);
      queue(() -> tracker.stageStarted(stage, attempt, partitions));
    }
  }

  @Override
  public void onTaskStart(SparkListenerTaskStart event) {
    if (tracker == null) {
      return;
    }
    int stage = event.stageId();
    int attempt = event.stageAttemptId();
    int partition = event.taskInfo().partitionId();
    queue(() -> tracker.taskStarted(stage, attempt, partition));
  }

  @Override
  public void onTaskEnd(SparkListenerTaskEnd event) {
    if (tracker == null || event.taskInfo() == null) {
      return;
    }
    int stage = event.stageId();
    int attempt = event.stageAttemptId();
    int partition = event.taskInfo().partitionId();
    Tracker.Outcome outcome = event.reason() == Success$.MODULE$ ? Tracker.Outcome.SUCCESS
        : event.reason() == Resubmitted$.MODULE$ ? Tracker.Outcome.OUTPUT_LOST
        : Tracker.Outcome.FAILURE;
    queue(() -> tracker.taskEnded(stage, attempt, partition, outcome));
  }

  @Override
  public void onJobEnd(SparkListenerJobEnd event) {
    if (tracker != null) {
      int job = event.jobId();
      queue(() -> tracker.jobEnded(job));
    }
  }

  @Override
  public void onBlockUpdated(SparkListenerBlockUpdated event) {
    BlockUpdatedInfo info = event.blockUpdatedInfo();
    if (tracker != null && info.blockId() instanceof RDDBlockId block) {
      int rdd = block.rddId();
      int partition = block.splitIndex();
      String executor = info.blockManagerId().executorId();
      boolean stored = info.storageLevel().isValid();
      queue(() -> tracker.blockUpdated(rdd, partition, executor, stored));
    }
  }

  @Override
  public void onBlockManagerRemoved(SparkListenerBlockManagerRemoved event) {
    if (tracker != null) {
      String executor = event.blockManagerId().executorId();
      queue(() -> tracker.executorLost(executor));
    }
  }

  @Override
  public void onUnpersistRDD(SparkListenerUnpersistRDD event) {
    if (tracker != null) {
      int rdd = event.rddId();
      queue(() -> tracker.unpersisted(rdd));
    }
  }

  @Override
  public void onApplicationEnd(SparkListenerApplicationEnd event) {
    if (tracker == null) {
      return;
    }
    queue(() -> {
      tracker.applicationEnded();
      ended = true;
    });
    try {
      worker.join(CLOSE_MS_MAX);
      socket.close(CLOSE_MS_MAX);
    } catch (InterruptedException stop) {
      Thread.currentThread().interrupt();
    }
  }
}
