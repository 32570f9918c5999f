package copperfs.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * One job of the contract, and the lines that describe it. A changed job is submitted again as its
 * next attempt, which replaces the one before.
 */
final class Submission {
  final String name;
  /** A later attempt lists the finished tasks too, so that a profile of the run sees the whole job. */
  private final boolean keepsFinished;
  List<ReadTask> tasks = new ArrayList<>();
  /** The ids of added tasks. */
  private final Set<String> ids = new HashSet<>();
  /** The tasks differ from the last attempt that was sent. */
  boolean dirty;
  private int attempts;

  Submission(String name, boolean keepsFinished) {
    this.name = name;
    this.keepsFinished = keepsFinished;
  }

  boolean sent() {
    return attempts > 0;
  }

  void add(ReadTask task) {
    tasks.add(task);
    ids.add(task.id);
    dirty = true;
  }

  /** Returns an id that no added task of this job has. */
  String freeId(String id) {
    String free = id;
    for (int copy = 1; ids.contains(free); copy++) {
      free = id + "+" + copy;
    }
    return free;
  }

  /** Returns the lines that bring the other side to this state, and clears {@code dirty}. */
  List<String> flush() {
    List<String> lines = new ArrayList<>();
    if (!dirty) {
      return lines;
    }
    dirty = false;
    if (!keepsFinished) {
      tasks.removeIf(task -> task.done);
      ids.clear();
      tasks.forEach(task -> ids.add(task.id));
    }
    // A job without a reference is worth a line only where it replaces an attempt that had some.
    if (tasks.isEmpty() && attempts == 0) {
      return lines;
    }
    lines.add(submitLine());
    attempts++;
    for (ReadTask task : tasks) {
      if (task.done) {
        lines.add(eventLine("done", task));
      }
    }
    return lines;
  }

  private String submitLine() {
    Map<String, Integer> index = new HashMap<>();
    StringBuilder files = new StringBuilder();
    StringBuilder list = new StringBuilder();
    for (ReadTask task : tasks) {
      list.append(list.length() == 0 ? "{\"id\":" : ",{\"id\":");
      Json.string(list, task.id);
      list.append(",\"in\":[");
      boolean first = true;
      for (FileRange input : task.inputs) {
        Integer at = index.get(input.path());
        if (at == null) {
          at = index.size();
          index.put(input.path(), at);
          if (at > 0) {
            files.append(',');
          }
          Json.string(files, input.path());
        }
        list.append(first ? "[" : ",[").append(at).append(',').append(input.offset()).append(',')
            .append(input.length()).append(']');
        first = false;
      }
      list.append("]}");
    }
    StringBuilder line = new StringBuilder("{\"v\":1,\"op\":\"submit\",\"job\":");
    Json.string(line, name);
    return line.append(",\"attempt\":").append(attempts).append(",\"files\":[").append(files)
        .append("],\"tasks\":[").append(list).append("]}").toString();
  }

  static String eventLine(String op, ReadTask task) {
    StringBuilder line = new StringBuilder("{\"v\":1,\"op\":\"").append(op).append("\",\"job\":");
    Json.string(line, task.job.name);
    line.append(",\"task\":");
    Json.string(line, task.id);
    return line.append('}').toString();
  }

  String endLine() {
    StringBuilder line = new StringBuilder("{\"v\":1,\"op\":\"end\",\"job\":");
    Json.string(line, name);
    return line.append('}').toString();
  }
}
