package copperfs.spark;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.rdd.RDD;

/** An SQL execution or a plain RDD job: the part of the application that one submission describes. */
class Owner {
  final Submission main;
  final StageReads reads = new StageReads();
  /** Reads beyond the expected ones: a submission for each attempt of a stage that repeats some. */
  private final Map<String, Submission> repeats = new LinkedHashMap<>();

  Owner(String name) {
    // Named scans are the same from run to run, so a later attempt of an execution lists them all.
    this.main = new Submission(name, true);
  }

  Submission repeats(int stage, int attempt) {
    String name = main.name + "/stage-" + stage + "." + attempt;
    return repeats.computeIfAbsent(name, key -> new Submission(key, false));
  }

  List<Submission> submissions() {
    List<Submission> all = new ArrayList<>();
    all.add(main);
    all.addAll(repeats.values());
    return all;
  }

  /** A job without an SQL execution. */
  static final class PlainJob extends Owner {
    PlainJob(String name) {
      super(name);
    }
  }

  /** An SQL execution: its scans, as planned and as found in the stages. */
  static final class Execution extends Owner {
    /** Null if the execution had ended before its start was heard of. */
    final org.apache.spark.sql.execution.QueryExecution query;
    final long id;
    final List<Scan> scans = new ArrayList<>();
    final Map<Integer, Scan> byRdd = new LinkedHashMap<>();
    int scansNamed;

    Execution(String name, long id, org.apache.spark.sql.execution.QueryExecution query) {
      super(name);
      this.id = id;
      this.query = query;
    }

    Scan newScan(org.apache.spark.sql.execution.SparkPlan node, int passes) {
      Scan scan = new Scan(++scansNamed, node, passes);
      scans.add(scan);
      return scan;
    }

    void listScans() {
      main.tasks = new ArrayList<>();
      for (Scan scan : scans) {
        scan.list(main.tasks);
      }
      main.dirty = true;
    }
  }

  /** A file scan of an SQL execution. */
  static final class Scan {
    final int number;
    /** Null for a scan that is in a stage and not in the plan. */
    org.apache.spark.sql.execution.SparkPlan node;
    /** Null until the file partitions of {@code node} are known. */
    RDD<?> rdd;
    final int passes;
    /** A task for each pass and file partition, null where the partition is outside the dataset. */
    ReadTask[][] tasks;
    private List<List<FileRange>> inputs;

    Scan(int number, org.apache.spark.sql.execution.SparkPlan node, int passes) {
      this.number = number;
      this.node = node;
      this.passes = passes;
    }

    /** Takes the file partitions. Returns false if they are the known ones. */
    boolean plan(Submission job, List<List<FileRange>> partitions) {
      if (partitions.equals(inputs)) {
        return false;
      }
      inputs = partitions;
      tasks = new ReadTask[passes][partitions.size()];
      for (int pass = 0; pass < passes; pass++) {
        for (int p = 0; p < partitions.size(); p++) {
          List<FileRange> input = partitions.get(p);
          tasks[pass][p] = input.isEmpty() ? null : new ReadTask(job, taskId(pass, p), input);
        }
      }
      return true;
    }

    boolean hasOtherPartitions(List<List<FileRange>> partitions) {
      return inputs != null && !partitions.equals(inputs);
    }

    List<FileRange> inputs(int partition) {
      return inputs.get(partition);
    }

    String taskId(int pass, int partition) {
      return "scan" + number + (pass == 0 ? "" : "." + pass) + "/" + partition;
    }

    /** Returns the next planned read of the partition, or null if all have their Spark task. */
    ReadTask unbound(int partition) {
      for (ReadTask[] pass : tasks) {
        if (pass[partition] != null && !pass[partition].bound) {
          return pass[partition];
        }
      }
      return null;
    }

    boolean isRead() {
      if (tasks != null) {
        for (ReadTask[] pass : tasks) {
          for (ReadTask task : pass) {
            if (task != null && task.bound) {
              return true;
            }
          }
        }
      }
      return false;
    }

    void list(List<ReadTask> into) {
      if (tasks != null) {
        for (ReadTask[] pass : tasks) {
          for (ReadTask task : pass) {
            if (task != null) {
              into.add(task);
            }
          }
        }
      }
    }
  }
}
