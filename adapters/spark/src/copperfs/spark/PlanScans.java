package copperfs.spark;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.plans.physical.RangePartitioning;
import org.apache.spark.sql.execution.BaseSubqueryExec;
import org.apache.spark.sql.execution.FileSourceScanExec;
import org.apache.spark.sql.execution.ReusedSubqueryExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SubqueryAdaptiveBroadcastExec;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.adaptive.QueryStageExec;
import org.apache.spark.sql.execution.columnar.CachedRDDBuilder;
import org.apache.spark.sql.execution.columnar.InMemoryTableScanExec;
import org.apache.spark.sql.execution.datasources.v2.BatchScanExec;
import org.apache.spark.sql.execution.exchange.Exchange;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec;

/** Finds the file scans of a physical plan, and how often each will be read. */
final class PlanScans {
  /** A scan, and the number of times that each of its partitions will be read. */
  record Found(SparkPlan node, int passes) {}

  private final Predicate<RDD<?>> isMaterialised;
  private final boolean reusesExchanges;
  private final boolean reusesSubqueries;
  private final List<Found> found = new ArrayList<>();
  private final Set<Object> shared = new HashSet<>();
  private final Map<Object, Boolean> caches = new IdentityHashMap<>();

  private PlanScans(Predicate<RDD<?>> isMaterialised, boolean exchanges, boolean subqueries) {
    this.isMaterialised = isMaterialised;
    this.reusesExchanges = exchanges;
    this.reusesSubqueries = subqueries;
  }

  static List<Found> of(SparkPlan plan, Predicate<RDD<?>> isMaterialised) {
    PlanScans scans = new PlanScans(isMaterialised, plan.conf().exchangeReuseEnabled(),
        plan.conf().subqueryReuseEnabled());
    scans.visit(plan, 1);
    return scans.found;
  }

  private void visit(SparkPlan plan, int passes) {
    if (plan instanceof FileSourceScanExec || plan instanceof BatchScanExec) {
      found.add(new Found(plan, passes));
    } else if (plan instanceof AdaptiveSparkPlanExec adaptive) {
      // The current plan: the initial one first, then each plan that replaces it.
      visit(adaptive.executedPlan(), passes);
    } else if (plan instanceof QueryStageExec stage) {
      visitStage(stage, passes);
    } else if (plan instanceof ReusedExchangeExec reused) {
      visit(reused.child(), passes);
    } else if (plan instanceof Exchange exchange) {
      visitExchange(exchange, exchange.canonicalized());
    } else if (plan instanceof ReusedSubqueryExec reused) {
      visit(reused.child(), passes);
    } else if (plan instanceof SubqueryAdaptiveBroadcastExec) {
      // A place holder: it becomes a broadcast that the plan has elsewhere, or nothing.
    } else if (plan instanceof BaseSubqueryExec) {
      if (!reusesSubqueries || shared.add(plan.canonicalized())) {
        visitBelow(plan, 1);
      }
    } else if (plan instanceof InMemoryTableScanExec cached) {
      visitCached(cached.relation().cacheBuilder());
    } else {
      visitBelow(plan, passes);
    }
    for (SparkPlan subquery : Scala.<SparkPlan>items(plan.subqueries())) {
      visit(subquery, 1);
    }
  }

  private void visitBelow(SparkPlan plan, int passes) {
    for (SparkPlan child : Scala.<SparkPlan>items(plan.children())) {
      visit(child, passes);
    }
  }

  private void visitStage(QueryStageExec stage, int passes) {
    SparkPlan plan = stage.plan() instanceof ReusedExchangeExec reused ? reused.child() : stage.plan();
    if (plan instanceof Exchange exchange) {
      // The stage keeps the form that the exchange had before its code was generated.
      visitExchange(exchange, stage.canonicalized());
    } else {
      visit(plan, passes);
    }
  }

  /** An exchange runs once. Adaptive execution finds equal ones only when it creates their stages. */
  private void visitExchange(Exchange exchange, Object form) {
    if (reusesExchanges && !shared.add(form)) {
      return;
    }
    // A range exchange runs its child twice: first a job that samples the keys for the bounds.
    boolean samples = exchange instanceof ShuffleExchangeExec shuffle
        && shuffle.outputPartitioning() instanceof RangePartitioning range
        && range.numPartitions() > 1;
    visitBelow(exchange, samples ? 2 : 1);
  }

  private void visitCached(CachedRDDBuilder cache) {
    if (caches.put(cache, true) != null) {
      return;
    }
    RDD<?> buffers = buffers(cache);
    if (buffers == null || !isMaterialised.test(buffers)) {
      visit(cache.cachedPlan(), 1);
    }
  }

  /**
   * Returns the cached RDD if it exists. Its public accessors hold a lock while the frame is being
   * computed, so they could block for the time of a whole query.
   */
  private static RDD<?> buffers(CachedRDDBuilder cache) {
    try {
      Field field = CachedRDDBuilder.class.getDeclaredField("_cachedColumnBuffers");
      field.setAccessible(true);
      return (RDD<?>) field.get(cache);
    } catch (ReflectiveOperationException | RuntimeException unknown) {
      return null;
    }
  }

  /** Names a scan for as long as adaptive execution copies it from plan to plan. */
  static String key(SparkPlan scan) {
    return scan.nodeName() + ' ' + scan.output();
  }

  /** Returns true if the scan's file partitions depend on a subquery that may not have run. */
  static boolean waitsForSubqueries(SparkPlan scan) {
    return !scan.subqueries().isEmpty();
  }

  /** Returns the RDD whose partitions are the scan's file partitions. */
  static RDD<?> rdd(SparkPlan scan) {
    RDD<?> rdd = scan instanceof FileSourceScanExec files
        ? files.inputRDD()
        : ((BatchScanExec) scan).inputRDD();
    // Some versions coalesce the partitions inside the scan.
    while (!rdd.dependencies().isEmpty()) {
      rdd = rdd.dependencies().head().rdd();
    }
    return rdd;
  }
}
