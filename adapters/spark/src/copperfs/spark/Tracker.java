package copperfs.spark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.function.Consumer;
import org.apache.spark.Dependency;
import org.apache.spark.NarrowDependency;
import org.apache.spark.Partition;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.ResultStage;
import org.apache.spark.scheduler.ShuffleMapStage;
import org.apache.spark.scheduler.Stage;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlan;

/**
 * Turns the events of the application into submissions. One thread calls it, in the order of the
 * events.
 *
 * <p>Two sources: the plan says early, at the start of an execution, which scans will be read and
 * how often. The stages say exactly, at the start of a job, which Spark task reads which file
 * partition. A read of a stage takes a planned task of the same scan and partition. If there is
 * none, because the stage repeats a read, it goes to a further submission of its own.
 */
final class Tracker {
  private static final String EXECUTION = "spark.sql.execution.id";

  enum Outcome { SUCCESS, FAILURE, OUTPUT_LOST }

  /** A stage, with the state that it had when the event was heard. */
  record SeenStage(Stage stage, int outputs) {}

  private final String app;
  private final Dataset dataset;
  private final Consumer<List<String>> lines;
  private final Map<Long, Owner.Execution> executions = new HashMap<>();
  private final Map<Integer, Owner> jobs = new HashMap<>();
  private final Map<Integer, StageRun> runs = new HashMap<>();
  private final CachedBlocks blocks = new CachedBlocks();
  private final Set<Owner> changed = new LinkedHashSet<>();

  Tracker(String app, Dataset dataset, Consumer<List<String>> lines) {
    this.app = app;
    this.dataset = dataset;
    this.lines = lines;
  }

  // Executions.

  void executionStarted(long id, QueryExecution query) {
    if (executions.containsKey(id)) {
      return;
    }
    Owner.Execution execution = new Owner.Execution(app + "/sql-" + id, id, query);
    executions.put(id, execution);
    readPlan(execution);
  }

  void planChanged(long id) {
    Owner.Execution execution = executions.get(id);
    if (execution != null) {
      readPlan(execution);
    }
  }

  void executionEnded(long id) {
    Owner.Execution execution = executions.remove(id);
    if (execution != null) {
      end(execution);
    }
  }

  private void end(Owner owner) {
    changed.remove(owner);
    List<String> ends = new ArrayList<>();
    for (Submission job : owner.submissions()) {
      if (job.sent()) {
        ends.add(job.endLine());
      }
    }
    lines.accept(ends);
    runs.values().removeIf(run -> {
      if (run.owner == owner) {
        blocks.stageEnded(run.id);
      }
      return run.owner == owner;
    });
  }

  /** Brings the scans of an execution in line with its current plan. */
  private void readPlan(Owner.Execution execution) {
    if (execution.query == null) {
      return;
    }
    inExecution(execution, () -> {
      SparkPlan plan;
      try {
        plan = execution.query.executedPlan();
      } catch (Exception invalid) {
        // Spark also announces executions that it cannot plan.
        return;
      }
      List<PlanScans.Found> found = PlanScans.of(plan, blocks::holdsAll);
      boolean dirty = matchScans(execution, found);
      for (Owner.Scan scan : execution.scans) {
        if (scan.tasks == null && !PlanScans.waitsForSubqueries(scan.node)) {
          dirty |= planFiles(execution, scan);
        }
      }
      if (dirty) {
        execution.listScans();
        changed.add(execution);
      }
    });
  }

  /** Returns true if a scan that had tasks has been dropped. */
  private static boolean matchScans(Owner.Execution execution, List<PlanScans.Found> found) {
    Set<Owner.Scan> kept = Collections.newSetFromMap(new IdentityHashMap<>());
    List<PlanScans.Found> rest = new ArrayList<>();
    for (PlanScans.Found one : found) {
      Owner.Scan same = find(execution, kept, scan -> scan.node == one.node());
      if (same == null) {
        rest.add(one);
      } else {
        kept.add(same);
      }
    }
    for (PlanScans.Found one : rest) {
      String key = PlanScans.key(one.node());
      Owner.Scan copied = find(execution, kept,
          scan -> scan.node != null && PlanScans.key(scan.node).equals(key));
      if (copied == null) {
        kept.add(execution.newScan(one.node(), one.passes()));
      } else {
        // Adaptive execution has copied the node. Its RDD will be another one.
        copied.node = one.node();
        copied.rdd = null;
        kept.add(copied);
      }
    }
    boolean dropped = false;
    for (Owner.Scan scan : List.copyOf(execution.scans)) {
      if (!kept.contains(scan) && scan.node != null && !scan.isRead()) {
        execution.scans.remove(scan);
        execution.byRdd.values().remove(scan);
        dropped |= scan.tasks != null;
      }
    }
    return dropped;
  }

  private static Owner.Scan find(Owner.Execution execution, Set<Owner.Scan> taken,
      java.util.function.Predicate<Owner.Scan> wanted) {
    for (Owner.Scan scan : execution.scans) {
      if (!taken.contains(scan) && wanted.test(scan)) {
        return scan;
      }
    }
    return null;
  }

  /** Asks the plan for the file partitions of a scan. Returns true if the submission changes. */
  private boolean planFiles(Owner.Execution execution, Owner.Scan scan) {
    RDD<?> rdd = PlanScans.rdd(scan.node);
    List<List<FileRange>> partitions = partitions(rdd);
    if (scan.hasOtherPartitions(partitions) && scan.isRead()) {
      // Both have been read: the copy is a scan of its own.
      Owner.Scan other = execution.newScan(scan.node, scan.passes);
      scan.node = null;
      return take(execution, other, rdd, partitions);
    }
    return take(execution, scan, rdd, partitions);
  }

  private boolean take(Owner.Execution execution, Owner.Scan scan, RDD<?> rdd,
      List<List<FileRange>> partitions) {
    scan.rdd = rdd;
    execution.byRdd.put(rdd.id(), scan);
    return scan.plan(execution.main, partitions);
  }

  private List<List<FileRange>> partitions(RDD<?> rdd) {
    List<List<FileRange>> inputs = new ArrayList<>();
    for (Partition partition : rdd.partitions()) {
      inputs.add(dataset.inputs(partition));
    }
    return inputs;
  }

  /** The scan's files are planned as the execution itself would do it: same session, same id. */
  private static void inExecution(Owner.Execution execution, Runnable action) {
    SparkContext context = execution.query.sparkSession().sparkContext();
    SparkSession.setActiveSession(execution.query.sparkSession());
    context.setLocalProperty(EXECUTION, Long.toString(execution.id));
    try {
      action.run();
    } finally {
      context.setLocalProperty(EXECUTION, null);
      SparkSession.clearActiveSession();
    }
  }

  // Jobs and stages.

  void jobStarted(int jobId, String executionId, List<SeenStage> stages) {
    Owner owner = executionId == null ? null : execution(Long.parseLong(executionId));
    if (owner == null) {
      owner = new Owner.PlainJob(app + "/job-" + jobId);
    }
    jobs.put(jobId, owner);
    for (SeenStage seen : stagesToRun(stages)) {
      int[] partitions;
      if (seen.stage() instanceof ResultStage result) {
        partitions = result.partitions();
      } else {
        partitions = seen.outputs() == 0 ? null : missing(seen.stage());
      }
      StageRun run = run(owner, seen.stage());
      run.jobs.add(jobId);
      bindAll(run, partitions, 0);
    }
    flush(owner);
  }

  /** Returns null if the execution has ended: an iterator over its rows still starts jobs then. */
  private Owner.Execution execution(long id) {
    if (!executions.containsKey(id)) {
      QueryExecution query = SQLExecution.getQueryExecution(id);
      if (query != null) {
        executionStarted(id, query);
      }
    }
    return executions.get(id);
  }

  /** Returns the partitions that the stage's next attempt computes. */
  static int[] missing(Stage stage) {
    int[] ofResult = stage instanceof ResultStage result ? result.partitions() : null;
    List<Object> missing;
    try {
      missing = Scala.items(stage.findMissingPartitions());
    } catch (NoSuchElementException ended) {
      // The job of a result stage has ended already.
      return new int[0];
    }
    // A result stage may compute some partitions only. It counts them from 0.
    return missing.stream()
        .mapToInt(p -> ofResult == null ? (Integer) p : ofResult[(Integer) p]).toArray();
  }

  /** Returns the stages that the scheduler will run: it skips those whose output exists. */
  private List<SeenStage> stagesToRun(List<SeenStage> stages) {
    Map<Integer, SeenStage> byShuffle = new HashMap<>();
    Set<Stage> parents = new HashSet<>();
    for (SeenStage seen : stages) {
      if (seen.stage() instanceof ShuffleMapStage map) {
        byShuffle.put(map.shuffleDep().shuffleId(), seen);
      }
      parents.addAll(Scala.<Stage>items(seen.stage().parents()));
    }
    Set<SeenStage> toRun = new LinkedHashSet<>();
    Deque<RDD<?>> rdds = new ArrayDeque<>();
    for (SeenStage seen : stages) {
      if (!parents.contains(seen.stage())) {
        toRun.add(seen);
        rdds.add(seen.stage().rdd());
      }
    }
    Set<Integer> visited = new HashSet<>();
    while (!rdds.isEmpty()) {
      RDD<?> rdd = rdds.pop();
      if (!visited.add(rdd.id()) || (StageReads.isCached(rdd) && blocks.holdsAll(rdd))) {
        continue;
      }
      for (Dependency<?> dependency : Scala.<Dependency<?>>items(rdd.dependencies())) {
        if (dependency instanceof NarrowDependency) {
          rdds.push(dependency.rdd());
        } else if (dependency instanceof ShuffleDependency<?, ?, ?> shuffle) {
          SeenStage seen = byShuffle.get(shuffle.shuffleId());
          if (seen != null && seen.outputs() < seen.stage().numPartitions() && toRun.add(seen)) {
            rdds.push(seen.stage().rdd());
          }
        }
      }
    }
    return new ArrayList<>(toRun);
  }

  /** {@code partitions}: null for all of the stage. */
  void stageStarted(Stage stage, int attempt, int[] partitions) {
    StageRun run = runs.get(stage.id());
    if (run == null) {
      Owner owner = jobs.get(stage.firstJobId());
      if (owner == null) {
        return;
      }
      run = run(owner, stage);
      run.jobs.add(stage.firstJobId());
    }
    bindAll(run, partitions, attempt);
  }

  void taskStarted(int stage, int attempt, int partition) {
    StageRun run = runs.get(stage);
    if (run != null && run.startsIn(partition, attempt)) {
      bind(run, partition, attempt);
    }
  }

  void taskEnded(int stage, int attempt, int partition, Outcome outcome) {
    StageRun run = runs.get(stage);
    if (run == null) {
      return;
    }
    if (outcome == Outcome.OUTPUT_LOST) {
      // The same attempt runs the task another time.
      bind(run, partition, attempt);
      return;
    }
    List<String> events = new ArrayList<>();
    for (StageRun.Bound bound : run.bound(partition)) {
      ReadTask task = bound.task();
      if (task.done) {
        continue;
      }
      if (task.job.dirty) {
        events.addAll(task.job.flush());
      }
      task.done = outcome == Outcome.SUCCESS;
      events.add(Submission.eventLine(task.done ? "done" : "taskfail", task));
    }
    lines.accept(events);
  }

  void jobEnded(int jobId) {
    Owner owner = jobs.remove(jobId);
    runs.values().removeIf(run -> {
      boolean last = run.jobs.remove(jobId) && run.jobs.isEmpty();
      if (last) {
        blocks.stageEnded(run.id);
      }
      return last;
    });
    if (owner instanceof Owner.PlainJob) {
      end(owner);
    }
  }

  private StageRun run(Owner owner, Stage stage) {
    return runs.computeIfAbsent(stage.id(), key -> new StageRun(owner, stage));
  }

  private void bindAll(StageRun run, int[] partitions, int attempt) {
    int count = partitions == null ? run.items.length : partitions.length;
    for (int i = 0; i < count; i++) {
      int partition = partitions == null ? i : partitions[i];
      if (run.startsIn(partition, attempt)) {
        bind(run, partition, attempt);
      }
    }
  }

  /** Finds the tasks that stand for the reads of a Spark task. Unfinished ones are kept. */
  private void bind(StageRun run, int partition, int attempt) {
    List<StageReads.FileRead> reads = new ArrayList<>();
    expand(run, partition, run.items[partition], reads);
    if (reads.isEmpty()) {
      return;
    }
    List<StageRun.Bound> kept = new ArrayList<>(run.bound(partition));
    kept.removeIf(bound -> bound.task().done);
    List<StageRun.Bound> now = new ArrayList<>();
    if (run.owner instanceof Owner.Execution execution) {
      for (StageReads.FileRead read : reads) {
        StageRun.Bound same = kept.stream()
            .filter(bound -> bound.read().equals(read)).findFirst().orElse(null);
        if (same == null) {
          ReadTask task = scanTask(execution, run, read, attempt);
          same = task == null ? null : new StageRun.Bound(read, task);
        } else {
          kept.remove(same);
        }
        if (same != null) {
          now.add(same);
        }
      }
    } else if (!kept.isEmpty()) {
      now = kept;
    } else {
      ReadTask task = plainTask(run, partition, reads, attempt);
      if (task != null) {
        now.add(new StageRun.Bound(reads.get(0), task));
      }
    }
    run.bind(partition, now);
  }

  private void expand(StageRun run, int partition, StageReads.Item[] items,
      List<StageReads.FileRead> into) {
    for (StageReads.Item item : items) {
      if (item instanceof StageReads.FileRead read) {
        into.add(read);
      } else if (item instanceof StageReads.CachedBlock block
          && blocks.computes(block.key(), run.id, partition)) {
        expand(run, partition, block.source(), into);
      }
    }
  }

  private ReadTask plainTask(StageRun run, int partition, List<StageReads.FileRead> reads,
      int attempt) {
    List<FileRange> inputs = new ArrayList<>();
    for (StageReads.FileRead read : reads) {
      inputs.addAll(dataset.inputs(read.rdd().partitions()[read.partition()]));
    }
    if (inputs.isEmpty()) {
      return null;
    }
    boolean again = attempt > 0 || !run.bound(partition).isEmpty();
    Submission job = again ? run.owner.repeats(run.id, attempt) : run.owner.main;
    ReadTask task = new ReadTask(job, job.freeId("stage" + run.id + "/" + partition), inputs);
    return added(run.owner, task);
  }

  private ReadTask scanTask(Owner.Execution execution, StageRun run, StageReads.FileRead read,
      int attempt) {
    Owner.Scan scan = execution.byRdd.get(read.rdd().id());
    if (scan == null) {
      scan = adopt(execution, read.rdd());
    }
    List<FileRange> inputs = scan.inputs(read.partition());
    if (inputs.isEmpty()) {
      return null;
    }
    ReadTask task = scan.unbound(read.partition());
    if (task != null) {
      task.bound = true;
      return task;
    }
    Submission job = execution.repeats(run.id, attempt);
    return added(execution, new ReadTask(job, job.freeId(scan.taskId(0, read.partition())), inputs));
  }

  private ReadTask added(Owner owner, ReadTask task) {
    task.bound = true;
    task.job.add(task);
    changed.add(owner);
    return task;
  }

  /** Finds the scan of an RDD that is in a stage: planned late, copied, or not in the plan. */
  private Owner.Scan adopt(Owner.Execution execution, RDD<?> rdd) {
    readPlan(execution);
    boolean dirty = false;
    for (Owner.Scan scan : List.copyOf(execution.scans)) {
      if (scan.rdd == null && scan.node != null && !execution.byRdd.containsKey(rdd.id())) {
        boolean[] changes = {false};
        inExecution(execution, () -> {
          try {
            changes[0] = planFiles(execution, scan);
          } catch (RuntimeException unfinished) {
            // Its subqueries have not ended, so it is another scan.
          }
        });
        dirty |= changes[0];
      }
    }
    Owner.Scan scan = execution.byRdd.get(rdd.id());
    if (scan == null) {
      scan = execution.newScan(null, 1);
      dirty |= take(execution, scan, rdd, partitions(rdd));
    }
    if (dirty) {
      execution.listScans();
      changed.add(execution);
    }
    return scan;
  }

  // Cached blocks.

  void blockUpdated(int rdd, int partition, String executor, boolean stored) {
    blocks.update(rdd, partition, executor, stored);
  }

  void executorLost(String executor) {
    blocks.lost(executor);
  }

  void unpersisted(int rdd) {
    blocks.unpersist(rdd);
  }

  // The other side.

  void flush() {
    for (Owner owner : List.copyOf(changed)) {
      flush(owner);
    }
  }

  private void flush(Owner owner) {
    changed.remove(owner);
    for (Submission job : owner.submissions()) {
      lines.accept(job.flush());
    }
  }

  /** Ends the executions that Spark no longer has: their end may have been among dropped events. */
  void endForgotten() {
    for (long id : List.copyOf(executions.keySet())) {
      if (SQLExecution.getQueryExecution(id) == null) {
        executionEnded(id);
      }
    }
  }

  void applicationEnded() {
    Set<Owner> owners = new LinkedHashSet<>(jobs.values());
    owners.addAll(executions.values());
    owners.forEach(this::end);
    jobs.clear();
    executions.clear();
  }
}
