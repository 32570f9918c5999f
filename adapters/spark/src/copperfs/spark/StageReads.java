package copperfs.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.Dependency;
import org.apache.spark.NarrowDependency;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.Partition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.rdd.UnionRDD;
import org.apache.spark.storage.StorageLevel;

/**
 * Tells which file partitions each task of a stage reads. It follows the narrow dependencies of the
 * stage's RDD, as the task itself does, so unions, coalesced partitions and joins without a shuffle
 * come out right whatever the plan looked like.
 */
final class StageReads {
  private static final Item[] NOTHING = {};

  /** What a partition of an RDD needs: a file partition, or a block that may be cached. */
  interface Item {}

  record FileRead(RDD<?> rdd, int partition) implements Item {}

  record CachedBlock(long key, Item[] source) implements Item {}

  private final Map<Integer, Item[][]> known = new HashMap<>();

  static long blockKey(int rddId, int partition) {
    return ((long) rddId << 32) | (partition & 0xffffffffL);
  }

  static boolean isCached(RDD<?> rdd) {
    return !rdd.getStorageLevel().equals(StorageLevel.NONE());
  }

  /** Returns, for each partition of the RDD, the items that a task for it needs. */
  Item[][] of(RDD<?> rdd) {
    Item[][] items = known.get(rdd.id());
    if (items == null) {
      items = find(rdd);
      known.put(rdd.id(), items);
    }
    return items;
  }

  private Item[][] find(RDD<?> rdd) {
    Partition[] partitions = rdd.partitions();
    Item[][] items = new Item[partitions.length][];
    List<Dependency<?>> dependencies = Scala.items(rdd.dependencies());
    if (dependencies.isEmpty()) {
      for (int p = 0; p < partitions.length; p++) {
        items[p] = Dataset.readsFiles(partitions[p]) ? new Item[] {new FileRead(rdd, p)} : NOTHING;
      }
    } else if (rdd instanceof UnionRDD) {
      // The partitions of all parents in order. Asking each dependency for each partition would
      // cost their product.
      int at = 0;
      for (Dependency<?> dependency : dependencies) {
        for (Item[] item : of(dependency.rdd())) {
          items[at++] = item;
        }
      }
    } else if (dependencies.size() == 1
        && dependencies.get(0) instanceof OneToOneDependency<?> only
        && only.rdd().partitions().length == partitions.length) {
      items = of(only.rdd());
    } else {
      for (int p = 0; p < partitions.length; p++) {
        items[p] = parents(dependencies, p);
      }
    }
    return isCached(rdd) ? blocks(rdd, items) : items;
  }

  private Item[] parents(List<Dependency<?>> dependencies, int partition) {
    List<Item> all = new ArrayList<>();
    for (Dependency<?> dependency : dependencies) {
      if (dependency instanceof NarrowDependency<?> narrow) {
        Item[][] source = of(narrow.rdd());
        for (Object parent : Scala.items(narrow.getParents(partition))) {
          all.addAll(List.of(source[(Integer) parent]));
        }
      }
    }
    return all.isEmpty() ? NOTHING : all.toArray(NOTHING);
  }

  private static Item[][] blocks(RDD<?> rdd, Item[][] items) {
    Item[][] blocks = new Item[items.length][];
    for (int p = 0; p < items.length; p++) {
      blocks[p] = items[p].length == 0
          ? NOTHING
          : new Item[] {new CachedBlock(blockKey(rdd.id(), p), items[p])};
    }
    return blocks;
  }
}
