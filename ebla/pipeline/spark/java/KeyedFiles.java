package ebla;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** The files of a read, of which a query opens those that can have rows of the keys that it asks for.
 *
 * `choose` is Python: it is given filters, and answers with the names of files, one a line, or null for all of them.
 */
public class KeyedFiles implements FileIndex {
    private final FileIndex files;
    private final String key;
    private final Function1 choose;

    public KeyedFiles(FileIndex files, String key, Function1 choose) {
        this.files = files;
        this.key = key;
        this.choose = choose;
    }

    public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
        Seq listed = files.listFiles(partitionFilters, dataFilters);
        Filter[] filters = filtersOnKey(dataFilters);
        Object chosen = filters.length == 0 ? null : choose.apply(filters);
        if (chosen == null) return listed;
        HashSet names = new HashSet(Arrays.asList(((String) chosen).split("\n")));
        List kept = new ArrayList();
        for (Iterator each = listed.iterator(); each.hasNext();) {
            PartitionDirectory directory = (PartitionDirectory) each.next();
            List own = new ArrayList();
            for (Iterator files = directory.files().iterator(); files.hasNext();) {
                FileStatusWithMetadata file = (FileStatusWithMetadata) files.next();
                if (names.contains(file.getPath().getName())) own.add(file);
            }
            kept.add(new PartitionDirectory(directory.values(), CollectionConverters.asScala(own).toSeq()));
        }
        return CollectionConverters.asScala(kept).toSeq();
    }

    /** The filters that Spark can tell to others, if one of them is about the first column of the key. */
    private Filter[] filtersOnKey(Seq dataFilters) {
        List found = new ArrayList();
        boolean isOnKey = false;
        for (Iterator each = dataFilters.iterator(); each.hasNext();) {
            Expression filter = (Expression) each.next();
            Option told = DataSourceStrategy$.MODULE$.translateFilter(filter, true);
            if (told.isEmpty()) continue;
            found.add(told.get());
            for (Iterator names = filter.references().iterator(); names.hasNext();) {
                if (((Attribute) names.next()).name().equals(key)) isOnKey = true;
            }
        }
        return isOnKey ? (Filter[]) found.toArray(new Filter[0]) : new Filter[0];
    }

    public Seq rootPaths() { return files.rootPaths(); }

    public String[] inputFiles() { return files.inputFiles(); }

    public void refresh() { files.refresh(); }

    public long sizeInBytes() { return files.sizeInBytes(); }

    public StructType partitionSchema() { return files.partitionSchema(); }

    public String toString() { return "Ebla(" + files.rootPaths().size() + " files)"; }
}
