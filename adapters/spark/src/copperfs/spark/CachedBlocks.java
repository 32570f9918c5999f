package copperfs.spark;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.rdd.RDD;

/**
 * The blocks of cached RDDs. A task that finds its block does not read the files from which the
 * block was made. Kept from events, in the order of the other events: the block manager itself
 * could already hold the blocks of the job that is about to be counted.
 */
final class CachedBlocks {
  private final Map<Integer, Map<Integer, Set<String>>> holders = new HashMap<>();
  /** Blocks that a running stage computes, with the stage and its partition. */
  private final Map<Long, Long> computing = new HashMap<>();

  void update(int rdd, int partition, String executor, boolean stored) {
    Map<Integer, Set<String>> blocks = holders.computeIfAbsent(rdd, key -> new HashMap<>());
    Set<String> executors = blocks.computeIfAbsent(partition, key -> new HashSet<>(2));
    if (stored) {
      executors.add(executor);
      computing.remove(StageReads.blockKey(rdd, partition));
    } else if (executors.remove(executor) && executors.isEmpty()) {
      blocks.remove(partition);
    }
  }

  void lost(String executor) {
    for (Map<Integer, Set<String>> blocks : holders.values()) {
      blocks.values().removeIf(executors -> executors.remove(executor) && executors.isEmpty());
    }
  }

  void unpersist(int rdd) {
    holders.remove(rdd);
  }

  boolean holds(long key) {
    Map<Integer, Set<String>> blocks = holders.get((int) (key >> 32));
    Set<String> executors = blocks == null ? null : blocks.get((int) key);
    return executors != null && !executors.isEmpty();
  }

  boolean holdsAll(RDD<?> rdd) {
    for (int p = 0; p < rdd.partitions().length; p++) {
      if (!holds(StageReads.blockKey(rdd.id(), p))) {
        return false;
      }
    }
    return true;
  }

  /** Returns true if this task is the one that computes the block. */
  boolean computes(long key, int stage, int partition) {
    long task = StageReads.blockKey(stage, partition);
    return !holds(key) && computing.computeIfAbsent(key, none -> task) == task;
  }

  void stageEnded(int stage) {
    computing.values().removeIf(task -> (int) (task >> 32) == stage);
  }
}
