"""A table function of a Spark session that a Python function answers, whenever a query is analysed.

    SELECT * FROM shop.ebla('orders')
                       |-- analysis, in the JVM --> Py4J --> answer("orders", ...) in this process --> a logical plan

Spark asks the functions of a session for a plan each time that it analyses a query which names them; so what they
return may be another plan every time. The call comes back on the thread that the query was started on, so that neither
side waits for a lock that the other one holds. A query is known by the object in which Spark keeps what it has resolved
for it.

**Errors.** Python cannot throw an exception of Spark's. What is refused becomes a relation that nobody knows, whose
name is the error: Spark then tells it in an `AnalysisException`, without a page of Java before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from ebla.errors import EblaError, RequestError

__all__ = ["register_function", "unregister_function"]

QUERIES_MAX = 64

# What is asked for: the arguments, and a number that is the same for all calls of one query.
Answer = Callable[[Sequence[Any], int], Any]


class _Builder:
    """What Spark calls: arguments as expressions in, a plan out."""

    def __init__(self, jvm: Any, answer: Answer) -> None:
        self._jvm = jvm
        self._answer = answer
        self._queries: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._count = 0

    def apply(self, arguments: Any) -> Any:
        """Return the plan for some arguments, which must be constants."""
        try:
            values = [_value(arguments.apply(at)) for at in range(arguments.size())]
            return self._answer(values, self._query())
        except EblaError as error:
            said = f"{type(error).__module__}.{type(error).__name__}: {error}"
            parts = self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(self._jvm.java.util.List.of(said)).toSeq()
            options = self._jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap.empty()
            return self._jvm.org.apache.spark.sql.catalyst.analysis.UnresolvedRelation(parts, options, False)

    def _query(self) -> int:
        """Return the number of the query that is being analysed on this thread."""
        analysis = self._jvm.org.apache.spark.sql.catalyst.analysis.AnalysisContext.get()
        resolved = analysis.relationCache()
        place = self._jvm.java.lang.System.identityHashCode(resolved)
        known = self._queries.get(place)
        if known is None or not known[0].refersTo(resolved):
            self._count += 1
            # Not held: it names plans, and would keep them in use.
            known = self._queries[place] = (self._jvm.java.lang.ref.WeakReference(resolved), self._count)
            while len(self._queries) > QUERIES_MAX:
                self._queries.popitem(last=False)
        return known[1]

    class Java:
        """For Py4J."""

        implements = ["scala.Function1"]  # noqa: RUF012 - as Py4J wants it


def _value(expression: Any) -> Any:
    """Return the value of a constant; bytes of text, as Spark has it, become text."""
    if not expression.foldable():
        raise RequestError("the arguments of ebla(table, as_of) are constants")
    found = expression.eval(None)
    kind = expression.dataType().typeName()
    if kind.startswith("timestamp"):
        return ("microseconds", int(found))
    return found if isinstance(found, int) else str(found.toString()) if hasattr(found, "toString") else str(found)


def register_function(spark: SparkSession, database: str, name: str, answer: Answer) -> None:
    """Make a function of a database known to a session, in place of one of that name."""
    context = spark.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    jvm: Any = context._jvm
    info = jvm.org.apache.spark.sql.catalyst.expressions.ExpressionInfo("ebla", database, name)
    _registry(spark).registerFunction(_identifier(jvm, database, name), info, _Builder(jvm, answer))


def unregister_function(spark: SparkSession, database: str, name: str) -> None:
    """Forget a function."""
    _registry(spark).dropFunction(_identifier(spark.sparkContext._jvm, database, name))


def _registry(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().tableFunctionRegistry()


def _identifier(jvm: Any, database: str, name: str) -> Any:
    some = jvm.scala.Some
    return jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, some(database), some("spark_catalog"))
