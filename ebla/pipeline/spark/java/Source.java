package ebla;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.CreatableRelationProvider;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.InsertableRelation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import scala.Function1;
import scala.jdk.javaapi.CollectionConverters;

/** format("ebla") as Spark finds it: the source written in Python, but for saves of a DataFrame, which come to `save`.
 *
 * Spark refuses two of its four save modes, and the output mode update, to every source written in Python. A source that
 * takes a DataFrame as a whole, on the driver, has all of them. `save` is Python: it is given the mode, the options, the
 * columns of the table as Spark knows it and the DataFrame, and answers with null, or with what went wrong.
 */
public class Source extends PythonDataSourceV2 implements DataSourceRegister, CreatableRelationProvider {
    public static volatile Function1 save;

    public String shortName() { return "ebla"; }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new SavedTable(super.getTable(schema, partitioning, properties), schema);
    }

    public BaseRelation createRelation(
            SQLContext context, SaveMode mode, scala.collection.immutable.Map options, Dataset data) {
        save(mode.name(), CollectionConverters.asJava(options), null, data);
        return new Saved(context, data.schema());
    }

    public boolean supportsDataType(DataType type) { return true; }

    static void save(String mode, Map options, StructType schema, Dataset data) {
        Object wrong = save.apply(new Object[] {mode, options, schema == null ? null : schema.json(), data});
        if (wrong instanceof Throwable) Platform.throwException((Throwable) wrong);
        if (wrong != null) throw new IllegalArgumentException((String) wrong);
    }
}

/** What was saved, for Spark to look through its cache for it. */
class Saved extends BaseRelation {
    private final SQLContext context;
    private final StructType schema;

    Saved(SQLContext context, StructType schema) {
        this.context = context;
        this.schema = schema;
    }

    public SQLContext sqlContext() { return context; }

    public StructType schema() { return schema; }
}

/** The table of a source written in Python, with saves that are taken as a whole. */
class SavedTable implements SupportsRead, SupportsWrite {
    private final Table python;
    private final StructType schema;

    SavedTable(Table python, StructType schema) {
        this.python = python;
        this.schema = schema;
    }

    public String name() { return python.name(); }

    public StructType schema() { return python.schema(); }

    public Set capabilities() {
        EnumSet own = EnumSet.copyOf(python.capabilities());
        own.remove(TableCapability.BATCH_WRITE);
        own.add(TableCapability.V1_BATCH_WRITE);
        return own;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return ((SupportsRead) python).newScanBuilder(options);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return new SavedWrite(((SupportsWrite) python).newWriteBuilder(info), info, schema);
    }
}

class SavedWrite implements SupportsTruncate, SupportsStreamingUpdateAsAppend, V1Write, InsertableRelation {
    private WriteBuilder python;
    private final LogicalWriteInfo info;
    private final StructType schema;
    private boolean isAll = false;

    SavedWrite(WriteBuilder python, LogicalWriteInfo info, StructType schema) {
        this.python = python;
        this.info = info;
        this.schema = schema;
    }

    public WriteBuilder truncate() {
        python = ((SupportsTruncate) python).truncate();
        isAll = true;
        return this;
    }

    public Write build() { return this; }

    public StreamingWrite toStreaming() { return python.build().toStreaming(); }

    public InsertableRelation toInsertableRelation() { return this; }

    public void insert(Dataset data, boolean overwrite) {
        Source.save(isAll || overwrite ? "Overwrite" : "Append", info.options().asCaseSensitiveMap(), schema, data);
    }

    public String description() { return "ebla"; }
}
