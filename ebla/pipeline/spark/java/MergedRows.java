package ebla;

import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.PrunedFilteredScan;
import org.apache.spark.sql.types.StructType;
import scala.Function1;

/** Rows that Python tasks merge: those columns of them that a query needs, and those that its filters leave.
 *
 * `plan` is Python: it is given columns and filters, and answers with rows in Spark's own form. Spark filters again.
 */
public class MergedRows extends BaseRelation implements PrunedFilteredScan {
    private final SQLContext context;
    private final StructType schema;
    private final long bytes;
    private final Function1 plan;

    public MergedRows(SQLContext context, StructType schema, long bytes, Function1 plan) {
        this.context = context;
        this.schema = schema;
        this.bytes = bytes;
        this.plan = plan;
    }

    public RDD buildScan(String[] columns, Filter[] filters) {
        return (RDD) plan.apply(new Object[] {columns, filters});
    }

    public SQLContext sqlContext() { return context; }

    public StructType schema() { return schema; }

    public long sizeInBytes() { return bytes; }

    public boolean needConversion() { return false; }

    public String toString() { return "EblaMerge"; }
}
