package ebla;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.optimizer.CollapseProject$;
import org.apache.spark.sql.catalyst.optimizer.ColumnPruning$;
import org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation$;
import org.apache.spark.sql.catalyst.optimizer.PushDownPredicates$;
import org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughUnion$;
import org.apache.spark.sql.catalyst.optimizer.RemoveNoopOperators$;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Function1;
import scala.Option;
import scala.Some;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/** Puts in place of a read by a source written in Python a plan that Spark carries out by itself.
 *
 * `plan` is Python: it is given the query, the source as it was pickled and its columns, and answers with a plan of these
 * columns, or with null for a read that is to stay as it is.
 */
public class NativeReads extends Rule {
    private static final int ROUNDS = 3;
    private final String source;
    private final Function1 plan;

    public NativeReads(String source, Function1 plan) {
        this.source = source;
        this.plan = plan;
    }

    public TreeNode apply(TreeNode given) {
        final Map plans = new IdentityHashMap();
        for (Iterator leaves = given.collectLeaves().iterator(); leaves.hasNext();) {
            Object leaf = leaves.next();
            LogicalPlan own = planOf(leaf);
            if (own != null) plans.put(leaf, own);
        }
        if (plans.isEmpty()) return given;
        LogicalPlan put = (LogicalPlan) given.transformDown(new AbstractPartialFunction() {
            public boolean isDefinedAt(Object node) { return plans.containsKey(node); }
            public Object applyOrElse(Object node, Function1 otherwise) {
                return plans.containsKey(node) ? plans.get(node) : otherwise.apply(node);
            }
        });
        // What Spark did before for plans that it knew: filters and columns go down, to every part of a union.
        for (int round = 0; round < ROUNDS; round++) {
            put = PushDownPredicates$.MODULE$.apply(put);
            put = PushProjectionThroughUnion$.MODULE$.apply(put);
            put = ColumnPruning$.MODULE$.apply(put);
            put = CollapseProject$.MODULE$.apply(put);
            put = RemoveNoopOperators$.MODULE$.apply(put);
        }
        return ConvertToLocalRelation$.MODULE$.apply(put);
    }

    private LogicalPlan planOf(Object leaf) {
        if (!(leaf instanceof DataSourceV2ScanRelation)) return null;
        DataSourceV2ScanRelation read = (DataSourceV2ScanRelation) leaf;
        if (!(read.scan() instanceof PythonScan)) return null;
        PythonScan scan = (PythonScan) read.scan();
        String name = (String) field(scan, "shortName");
        if (!source.equalsIgnoreCase(name)) return null;
        StructType columns = scan.readSchema();
        byte[] pickled = ((PythonDataSourceV2) field(scan, "ds"))
            .getOrCreateDataSourceInPython(name, (CaseInsensitiveStringMap) field(scan, "options"), new Some(columns))
            .dataSource();
        Option query = QueryPlanningTracker.get();
        Object made = plan.apply(new Object[] {query.isEmpty() ? null : query.get(), pickled, columns.json()});
        return made == null ? null : named((LogicalPlan) made, read.output());
    }

    /** The plan with its columns called what the query calls them. */
    private static LogicalPlan named(LogicalPlan plan, Seq output) {
        List columns = new ArrayList();
        for (int at = 0; at < output.size(); at++) {
            Attribute as = (Attribute) output.apply(at);
            Attribute column = (Attribute) plan.output().apply(at);
            Seq none = CollectionConverters.asScala(new ArrayList()).toSeq();
            columns.add(new Alias(column, as.name(), as.exprId(), as.qualifier(), new Some(as.metadata()), none));
        }
        return new Project(CollectionConverters.asScala(columns).toSeq(), plan);
    }

    private static Object field(Object of, String name) {
        try {
            Field field = of.getClass().getDeclaredField(name);
            field.setAccessible(true);
            return field.get(of);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException("this version of Spark has no " + name + " in " + of.getClass(), error);
        }
    }
}
