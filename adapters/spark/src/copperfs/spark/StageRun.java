package copperfs.spark;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.scheduler.Stage;

/** A stage that runs, and the reads that each of its tasks performs. */
final class StageRun {
  /** A read and the task of a submission that stands for it. */
  record Bound(StageReads.FileRead read, ReadTask task) {}

  final Owner owner;
  final int id;
  final StageReads.Item[][] items;
  /** The jobs that need this stage. */
  final Set<Integer> jobs = new HashSet<>();
  private final List<Bound>[] bound;
  /** The stage attempt in which each partition was bound last, -1 for none. */
  private final int[] attempts;

  @SuppressWarnings({"unchecked", "rawtypes"})
  StageRun(Owner owner, Stage stage) {
    this.owner = owner;
    this.id = stage.id();
    this.items = owner.reads.of(stage.rdd());
    this.bound = new List[items.length];
    this.attempts = new int[items.length];
    java.util.Arrays.fill(attempts, -1);
  }

  /** Returns true the first time for this partition and attempt. */
  boolean startsIn(int partition, int attempt) {
    if (partition < 0 || partition >= attempts.length || attempts[partition] >= attempt) {
      return false;
    }
    attempts[partition] = attempt;
    return true;
  }

  List<Bound> bound(int partition) {
    List<Bound> list = partition < 0 || partition >= bound.length ? null : bound[partition];
    return list == null ? List.of() : list;
  }

  void bind(int partition, List<Bound> list) {
    bound[partition] = list.isEmpty() ? null : new ArrayList<>(list);
  }
}
