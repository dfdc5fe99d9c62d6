package orthia.pipeline;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonFilterPushdownResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

import scala.Option;
import scala.Some;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * A rule of Spark's optimizer that narrows each scan of a journal to what its query wants.
 *
 * <p>See pushdown.py, which compiles it. Janino knows neither lambdas nor inferred type arguments.
 * The rule runs after those that bring filters and projections down to the scans.
 */
public class JournalPushdown extends Rule {
    private static final String CHEAPEST = "seq";

    private final String format;

    public JournalPushdown(String format) {
        this.format = format;
    }

    public TreeNode apply(TreeNode plan) {
        return narrowed((LogicalPlan) plan, null, new ArrayList());
    }

    /** Rewrites a plan of which {@code wanted} is used, or all, where {@code conditions} hold. */
    private LogicalPlan narrowed(LogicalPlan plan, AttributeSet wanted, List conditions) {
        if (plan instanceof DataSourceV2ScanRelation) {
            return ofOneScan((DataSourceV2ScanRelation) plan, wanted, conditions);
        }
        List children = new ArrayList();
        boolean changed = false;
        for (Iterator each = plan.children().iterator(); each.hasNext();) {
            LogicalPlan child = (LogicalPlan) each.next();
            LogicalPlan other;
            if (plan instanceof Project) {
                other = narrowed(child, plan.references(), new ArrayList());
            } else if (plan instanceof Filter) {
                AttributeSet more = wanted == null ? null : wanted.$plus$plus(plan.references());
                List all = new ArrayList(conditions);
                split(((Filter) plan).condition(), all);
                other = narrowed(child, more, all);
            } else {
                other = narrowed(child, null, new ArrayList());
            }
            changed |= other != child;
            children.add(other);
        }
        return changed ? (LogicalPlan) plan.withNewChildren(seq(children)) : plan;
    }

    private static void split(Expression condition, List parts) {
        if (condition instanceof And) {
            split(((And) condition).left(), parts);
            split(((And) condition).right(), parts);
        } else {
            parts.add(condition);
        }
    }

    private LogicalPlan ofOneScan(
            DataSourceV2ScanRelation plan, AttributeSet wanted, List conditions) {
        CaseInsensitiveStringMap options = plan.relation().options();
        String table = (String) options.getOrDefault("table", "messages");
        if (!(plan.scan() instanceof PythonScan) || plan.scan() instanceof OfOneScan
                || !plan.relation().table().name().equals(format)
                || !(table.equalsIgnoreCase("messages") || table.equalsIgnoreCase("history"))) {
            return plan;
        }
        List output = new ArrayList();
        StructType schema = new StructType();
        AttributeReference cheapest = null;
        for (Iterator each = plan.output().iterator(); each.hasNext();) {
            AttributeReference one = (AttributeReference) each.next();
            if (wanted == null || wanted.contains(one)) {
                output.add(one);
                schema = schema.add(one.name(), one.dataType(), one.nullable());
            }
            if (cheapest == null || one.name().equals(CHEAPEST)) {
                cheapest = one;
            }
        }
        if (output.isEmpty()) {
            // Rows are counted; without a column there would be none to count.
            output.add(cheapest);
            schema = schema.add(cheapest.name(), cheapest.dataType(), cheapest.nullable());
        }
        List filters = new ArrayList();
        for (int place = 0; place < conditions.size(); place++) {
            Option found = DataSourceStrategy$.MODULE$.translateFilter(
                (Expression) conditions.get(place), false);
            if (found.isDefined()) {
                filters.add(found.get());
            }
        }
        if (filters.isEmpty() && output.size() == plan.output().size()) {
            return plan;
        }
        try {
            return plan.copy(
                plan.relation(), scan(schema, options, filters), seq(output),
                plan.copy$default$4(), plan.copy$default$5(), plan.copy$default$6(),
                plan.copy$default$7());
        } catch (Exception error) {
            // What is wrong with the source, if that is it, the plain scan says better.
            return plan;
        } catch (LinkageError error) {
            return plan;
        }
    }

    private PythonScan scan(StructType schema, CaseInsensitiveStringMap options, List filters) {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(format);
        Map told = new HashMap(options.asCaseSensitiveMap());
        told.put("takesfilters", "true");
        CaseInsensitiveStringMap own = new CaseInsensitiveStringMap(told);
        PythonDataSourceCreationResult created =
            source.getOrCreateDataSourceInPython(format, own, new Some(schema));
        org.apache.spark.sql.sources.Filter[] all = array(filters);
        Option result = source.source().pushdownFiltersInPython(created, schema, all);
        if (result.isEmpty()) {
            // There are no filters, or none that can be sent to Python: columns alone are left out.
            PythonDataSourceV2 plain = new PythonDataSourceV2();
            plain.setShortName(format);
            return new OfOneScan(plain, format, schema, options, array(new ArrayList()));
        }
        PythonFilterPushdownResult planned = (PythonFilterPushdownResult) result.get();
        source.setReadInfo(planned.readInfo());
        List pushed = new ArrayList();
        int place = 0;
        for (Iterator each = planned.isFilterPushed().iterator(); each.hasNext(); place++) {
            if (((Boolean) each.next()).booleanValue()) {
                pushed.add(all[place]);
            }
        }
        return new OfOneScan(source, format, schema, own, array(pushed));
    }

    private static org.apache.spark.sql.sources.Filter[] array(List filters) {
        return (org.apache.spark.sql.sources.Filter[]) filters.toArray(
            new org.apache.spark.sql.sources.Filter[filters.size()]);
    }

    private static Seq seq(List list) {
        return scala.jdk.javaapi.CollectionConverters.asScala(list).toSeq();
    }

    /** A scan that was narrowed, by which the rule knows that it has done its work. */
    public static class OfOneScan extends PythonScan {
        public OfOneScan(
                PythonDataSourceV2 source, String format, StructType schema,
                CaseInsensitiveStringMap options, org.apache.spark.sql.sources.Filter[] pushed) {
            super(source, format, schema, options, pushed);
        }
    }
}
