package copperfs.spark;

import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.Partition;
import org.apache.spark.rdd.HadoopPartition;
import org.apache.spark.rdd.NewHadoopPartition;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;

/** Tells which ranges of the dataset's files a partition reads. Ranges outside are dropped. */
final class Dataset {
  /** Directories whose real path is remembered: symbolic links are followed once for each. */
  private static final int REAL_PATHS_MAX = 4_096;

  private final List<String> roots = new ArrayList<>();
  private final Map<String, String> realPaths = new LinkedHashMap<>(64, 0.75f, true) {
    @Override
    protected boolean removeEldestEntry(Map.Entry<String, String> eldest) {
      return size() > REAL_PATHS_MAX;
    }
  };

  Dataset(String root) {
    Path path = Path.of(root).toAbsolutePath().normalize();
    Set<String> both = new LinkedHashSet<>();
    both.add(path.toString());
    both.add(realPath(path.toString()));
    for (String one : both) {
      roots.add(one.endsWith("/") ? one : one + "/");
    }
  }

  /** Returns true if the partition is of a kind that reads files. */
  static boolean readsFiles(Partition partition) {
    return partition instanceof FilePartition || partition instanceof HadoopPartition
        || partition instanceof NewHadoopPartition
        || partition.getClass().getName().endsWith(".DataSourceRDDPartition");
  }

  List<FileRange> inputs(Partition partition) {
    List<FileRange> into = new ArrayList<>();
    collect(partition, into);
    return into;
  }

  private void collect(Object partition, List<FileRange> into) {
    if (partition instanceof FilePartition file) {
      for (PartitionedFile part : file.files()) {
        add(part.toPath().toUri(), part.start(), part.length(), into);
      }
    } else if (partition instanceof HadoopPartition hadoop) {
      collectSplit(hadoop.inputSplit().value(), into);
    } else if (partition instanceof NewHadoopPartition hadoop) {
      collectSplit(hadoop.serializableHadoopSplit().value(), into);
    } else if (partition != null) {
      inputPartitions(partition, into);
    }
  }

  private void collectSplit(Object split, List<FileRange> into) {
    if (split instanceof org.apache.hadoop.mapred.FileSplit file) {
      add(file.getPath().toUri(), file.getStart(), file.getLength(), into);
    } else if (split instanceof org.apache.hadoop.mapreduce.lib.input.FileSplit file) {
      add(file.getPath().toUri(), file.getStart(), file.getLength(), into);
    } else if (split instanceof org.apache.hadoop.mapreduce.lib.input.CombineFileSplit files) {
      for (int i = 0; i < files.getNumPaths(); i++) {
        add(files.getPath(i).toUri(), files.getOffset(i), files.getLength(i), into);
      }
    }
  }

  /** A DataSourceRDDPartition has one input partition since Spark 4.2, a list of them before. */
  private void inputPartitions(Object partition, List<FileRange> into) {
    try {
      Method method;
      try {
        method = partition.getClass().getMethod("inputPartition");
      } catch (NoSuchMethodException older) {
        method = partition.getClass().getMethod("inputPartitions");
      }
      for (Object one : Scala.items(method.invoke(partition))) {
        if (one instanceof FilePartition) {
          collect(one, into);
        }
      }
    } catch (ReflectiveOperationException unknown) {
      // A version whose partitions look different: this scan is not counted.
    }
  }

  private void add(java.net.URI file, long offset, long length, List<FileRange> into) {
    String scheme = file.getScheme();
    if (length <= 0 || (scheme != null && !scheme.equals("file"))) {
      return;
    }
    String path = relative(file.getPath());
    if (path != null) {
      into.add(new FileRange(path, offset, length));
    }
  }

  private String relative(String path) {
    String below = below(path);
    if (below != null) {
      return below;
    }
    // The application may use another name of the same directory.
    int slash = path.lastIndexOf('/');
    if (slash <= 0) {
      return null;
    }
    String directory = path.substring(0, slash);
    return below(realPaths.computeIfAbsent(directory, Dataset::realPath) + path.substring(slash));
  }

  private String below(String path) {
    for (String root : roots) {
      if (path.startsWith(root)) {
        return path.substring(root.length());
      }
    }
    return null;
  }

  private static String realPath(String path) {
    try {
      return Path.of(path).toRealPath().toString();
    } catch (IOException | RuntimeException absent) {
      return path;
    }
  }
}
