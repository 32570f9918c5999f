package copperfs.spark;

import java.util.ArrayList;
import java.util.List;

/** Reads Scala's collections from Java. */
final class Scala {
  private Scala() {}

  /** Returns the items of a Seq or an Option. */
  @SuppressWarnings("unchecked")
  static <T> List<T> items(Object collection) {
    List<T> items = new ArrayList<>();
    scala.collection.Iterator<?> iterator = collection instanceof scala.Option<?> option
        ? option.iterator()
        : ((scala.collection.Iterable<?>) collection).iterator();
    while (iterator.hasNext()) {
      items.add((T) iterator.next());
    }
    return items;
  }
}
