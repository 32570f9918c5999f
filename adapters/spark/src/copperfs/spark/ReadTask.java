package copperfs.spark;

import java.util.List;

/** One task of a submission: one read of one file partition, or of one partition of an RDD. */
final class ReadTask {
  final Submission job;
  final String id;
  final List<FileRange> inputs;
  /** A Spark task has been found that performs this read. */
  boolean bound;
  /** The Spark task has succeeded. */
  boolean done;

  ReadTask(Submission job, String id, List<FileRange> inputs) {
    this.job = job;
    this.id = id;
    this.inputs = inputs;
  }
}
