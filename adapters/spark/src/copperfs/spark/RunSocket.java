package copperfs.spark;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The connection to {@code copperfs lrc run}: a bounded queue and a thread that empties it. The
 * first failure closes the connection for good, because the application must go on at its own pace.
 */
final class RunSocket {
  private static final Logger LOG = LoggerFactory.getLogger("copperfs.spark");
  private static final long CONNECT_MS_MAX = 2_000;
  private static final long ANSWER_MS_MAX = 5_000;
  /** When either bound is reached, further lines are dropped. One warning is logged. */
  private static final int QUEUE_LINES_MAX = 200_000;
  private static final long QUEUE_CHARS_MAX = 128L << 20;
  /** Lines written before their answers are awaited. */
  private static final int BATCH_LINES_MAX = 64;

  private final String path;
  private final ArrayDeque<String> queue = new ArrayDeque<>();
  private long queuedChars;
  private boolean sending;
  private boolean broken;
  private boolean closing;
  private boolean warnedFull;
  private boolean warnedRefused;
  private final StringBuilder answer = new StringBuilder();

  RunSocket(String path) {
    this.path = path;
    Thread thread = new Thread(this::run, "copperfs-spark-socket");
    thread.setDaemon(true);
    thread.start();
  }

  void send(List<String> lines) {
    boolean warn = false;
    synchronized (queue) {
      for (String line : lines) {
        if (broken || closing) {
          return;
        }
        if (queue.size() >= QUEUE_LINES_MAX || queuedChars + line.length() > QUEUE_CHARS_MAX) {
          warn = !warnedFull;
          warnedFull = true;
          continue;
        }
        queue.add(line);
        queuedChars += line.length();
      }
      queue.notifyAll();
    }
    if (warn) {
      LOG.warn("copperfs: too many events are waiting for {}: some are dropped", path);
    }
  }

  /** Waits until the queue is empty, then closes. Gives up after the time given. */
  void close(long timeoutMs) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    synchronized (queue) {
      while (!broken && (sending || !queue.isEmpty())) {
        long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
        if (left <= 0) {
          break;
        }
        queue.wait(left);
      }
      closing = true;
      queue.notifyAll();
    }
  }

  private void run() {
    try (Selector selector = Selector.open(); SocketChannel channel = connect()) {
      SelectionKey key = channel.register(selector, 0);
      List<String> batch = next();
      while (batch != null) {
        exchange(channel, selector, key, batch);
        batch = next();
      }
    } catch (IOException | RuntimeException | InterruptedException error) {
      LOG.warn("copperfs: no reference counts for this application: {}: {}", path,
          error.getMessage() == null ? error.toString() : error.getMessage());
    } finally {
      synchronized (queue) {
        broken = true;
        queue.clear();
        queue.notifyAll();
      }
    }
  }

  /** A full backlog refuses at once, so it is tried again until the time is over. */
  private SocketChannel connect() throws IOException, InterruptedException {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(CONNECT_MS_MAX);
    while (true) {
      SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX);
      channel.configureBlocking(false);
      boolean connected = false;
      try {
        connected = channel.connect(UnixDomainSocketAddress.of(path)) || channel.finishConnect();
      } finally {
        if (!connected) {
          channel.close();
        }
      }
      if (connected) {
        return channel;
      }
      if (System.nanoTime() > end) {
        throw new IOException("connects no longer than " + CONNECT_MS_MAX + " ms");
      }
      Thread.sleep(50);
    }
  }

  /** Returns the next lines, or null when the connection is to be closed. */
  private List<String> next() throws InterruptedException {
    synchronized (queue) {
      sending = false;
      queue.notifyAll();
      while (queue.isEmpty()) {
        if (closing) {
          return null;
        }
        queue.wait();
      }
      List<String> batch = new ArrayList<>();
      while (!queue.isEmpty() && batch.size() < BATCH_LINES_MAX) {
        String line = queue.poll();
        queuedChars -= line.length();
        batch.add(line);
      }
      sending = true;
      return batch;
    }
  }

  /** Writes the lines and reads as many answers, both at once so that neither side can block. */
  private void exchange(SocketChannel channel, Selector selector, SelectionKey key,
      List<String> batch) throws IOException {
    StringBuilder text = new StringBuilder();
    for (String line : batch) {
      text.append(line).append('\n');
    }
    ByteBuffer out = StandardCharsets.UTF_8.encode(text.toString());
    ByteBuffer in = ByteBuffer.allocate(64 << 10);
    int answers = 0;
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ANSWER_MS_MAX);
    while (answers < batch.size()) {
      key.interestOps(SelectionKey.OP_READ | (out.hasRemaining() ? SelectionKey.OP_WRITE : 0));
      long left = TimeUnit.NANOSECONDS.toMillis(end - System.nanoTime());
      if (left <= 0) {
        throw new IOException("no answer for " + ANSWER_MS_MAX + " ms");
      }
      selector.select(left);
      selector.selectedKeys().clear();
      boolean progress = out.hasRemaining() && channel.write(out) > 0;
      int read = channel.read(in);
      if (read < 0) {
        throw new IOException("the other side has closed the connection");
      }
      in.flip();
      while (in.hasRemaining()) {
        char c = (char) (in.get() & 0xff);
        if (c == '\n') {
          answers++;
          judge();
        } else if (answer.length() < 1_000) {
          answer.append(c);
        }
      }
      in.clear();
      if (progress || read > 0) {
        end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ANSWER_MS_MAX);
      }
    }
  }

  private void judge() {
    if (answer.indexOf("\"error\"") >= 0 && !warnedRefused) {
      warnedRefused = true;
      LOG.warn("copperfs: a line was refused: {}", answer);
    }
    answer.setLength(0);
  }
}
