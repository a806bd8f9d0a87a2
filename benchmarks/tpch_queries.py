"""The 22 queries of TPC-H, with the parameters of its validation run, in the SQL that Spark and DuckDB share.

`queries(scale)` gives them by name. Dates are literals, views are common table expressions, and every name stands once,
so that neither engine needs a dialect of its own.
"""

from __future__ import annotations

import re

__all__ = ["TABLES", "queries", "tables_of"]

# The tables, and the columns of their keys.
TABLES: dict[str, tuple[str, ...]] = {
    "region": ("r_regionkey",),
    "nation": ("n_nationkey",),
    "supplier": ("s_suppkey",),
    "customer": ("c_custkey",),
    "part": ("p_partkey",),
    "partsupp": ("ps_partkey", "ps_suppkey"),
    "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
}

_REVENUE = "l_extendedprice * (1 - l_discount)"
# Query 11 asks for a share of all stock that shrinks as the data grows.
_STOCK_SHARE = 0.0001


def tables_of(query: str) -> list[str]:
    """Return the tables that a query reads."""
    words = set(re.findall(r"\w+", query))
    return [name for name in TABLES if name in words]


def queries(scale: float) -> dict[str, str]:
    """Return the queries by name: q1 to q22."""
    return {
        "q1": f"""
            select l_returnflag, l_linestatus, sum(l_quantity) as quantity, sum(l_extendedprice) as base_price,
                   sum({_REVENUE}) as price, sum({_REVENUE} * (1 + l_tax)) as charge, avg(l_quantity) as mean_quantity,
                   avg(l_extendedprice) as mean_price, avg(l_discount) as mean_discount, count(*) as orders_count
            from lineitem where l_shipdate <= date '1998-09-02'
            group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus""",
        "q2": """
            with offers as (
                select * from partsupp join supplier on s_suppkey = ps_suppkey join nation on s_nationkey = n_nationkey
                join region on n_regionkey = r_regionkey where r_name = 'EUROPE'),
            lowest as (select ps_partkey as part_key, min(ps_supplycost) as cost from offers group by ps_partkey)
            select s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
            from part join offers on p_partkey = ps_partkey
                join lowest on part_key = p_partkey and cost = ps_supplycost
            where p_size = 15 and p_type like '%BRASS'
            order by s_acctbal desc, n_name, s_name, p_partkey limit 100""",
        "q3": f"""
            select l_orderkey, sum({_REVENUE}) as revenue, o_orderdate, o_shippriority
            from customer join orders on c_custkey = o_custkey join lineitem on l_orderkey = o_orderkey
            where c_mktsegment = 'BUILDING' and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
            group by l_orderkey, o_orderdate, o_shippriority
            order by revenue desc, o_orderdate, l_orderkey limit 10""",
        "q4": """
            select o_orderpriority, count(*) as orders_count from orders
            where o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-10-01'
                and exists (select 1 from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate)
            group by o_orderpriority order by o_orderpriority""",
        "q5": f"""
            select n_name, sum({_REVENUE}) as revenue
            from customer join orders on c_custkey = o_custkey join lineitem on l_orderkey = o_orderkey
                join supplier on l_suppkey = s_suppkey and c_nationkey = s_nationkey
                join nation on s_nationkey = n_nationkey join region on n_regionkey = r_regionkey
            where r_name = 'ASIA' and o_orderdate >= date '1994-01-01' and o_orderdate < date '1995-01-01'
            group by n_name order by revenue desc""",
        "q6": """
            select sum(l_extendedprice * l_discount) as revenue from lineitem
            where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
                and l_discount between 0.05 and 0.07 and l_quantity < 24""",
        "q7": f"""
            with shipping as (
                select n1.n_name as supp_nation, n2.n_name as cust_nation, extract(year from l_shipdate) as l_year,
                    {_REVENUE} as volume
                from supplier join lineitem on s_suppkey = l_suppkey join orders on o_orderkey = l_orderkey
                    join customer on c_custkey = o_custkey join nation n1 on s_nationkey = n1.n_nationkey
                    join nation n2 on c_nationkey = n2.n_nationkey
                where l_shipdate between date '1995-01-01' and date '1996-12-31'
                    and ((n1.n_name = 'FRANCE' and n2.n_name = 'GERMANY')
                        or (n1.n_name = 'GERMANY' and n2.n_name = 'FRANCE')))
            select supp_nation, cust_nation, l_year, sum(volume) as revenue from shipping
            group by supp_nation, cust_nation, l_year order by supp_nation, cust_nation, l_year""",
        "q8": f"""
            with volumes as (
                select extract(year from o_orderdate) as o_year, {_REVENUE} as volume, n2.n_name as nation_name
                from part join lineitem on p_partkey = l_partkey join supplier on s_suppkey = l_suppkey
                    join orders on l_orderkey = o_orderkey join customer on o_custkey = c_custkey
                    join nation n1 on c_nationkey = n1.n_nationkey join region on n1.n_regionkey = r_regionkey
                    join nation n2 on s_nationkey = n2.n_nationkey
                where r_name = 'AMERICA' and o_orderdate between date '1995-01-01' and date '1996-12-31'
                    and p_type = 'ECONOMY ANODIZED STEEL')
            select o_year, sum(case when nation_name = 'BRAZIL' then volume else 0 end) / sum(volume) as mkt_share
            from volumes group by o_year order by o_year""",
        "q9": f"""
            with profits as (
                select n_name as nation_name, extract(year from o_orderdate) as o_year,
                    {_REVENUE} - ps_supplycost * l_quantity as amount
                from part join lineitem on p_partkey = l_partkey join supplier on s_suppkey = l_suppkey
                    join partsupp on ps_suppkey = l_suppkey and ps_partkey = l_partkey
                    join orders on o_orderkey = l_orderkey join nation on s_nationkey = n_nationkey
                where p_name like '%green%')
            select nation_name, o_year, sum(amount) as profit from profits
            group by nation_name, o_year order by nation_name, o_year desc""",
        "q10": f"""
            select c_custkey, c_name, sum({_REVENUE}) as revenue, c_acctbal, n_name, c_address, c_phone, c_comment
            from customer join orders on c_custkey = o_custkey join lineitem on l_orderkey = o_orderkey
                join nation on c_nationkey = n_nationkey
            where o_orderdate >= date '1993-10-01' and o_orderdate < date '1994-01-01' and l_returnflag = 'R'
            group by c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
            order by revenue desc, c_custkey limit 20""",
        "q11": f"""
            with stock as (
                select ps_partkey, ps_supplycost * ps_availqty as worth
                from partsupp join supplier on ps_suppkey = s_suppkey join nation on s_nationkey = n_nationkey
                where n_name = 'GERMANY')
            select ps_partkey, sum(worth) as worth_all from stock group by ps_partkey
            having sum(worth) > (select sum(worth) * {_STOCK_SHARE / scale:.10f} from stock)
            order by worth_all desc, ps_partkey""",
        "q12": """
            select l_shipmode,
                sum(case when o_orderpriority in ('1-URGENT', '2-HIGH') then 1 else 0 end) as high_count,
                sum(case when o_orderpriority in ('1-URGENT', '2-HIGH') then 0 else 1 end) as low_count
            from orders join lineitem on o_orderkey = l_orderkey
            where l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate and l_shipdate < l_commitdate
                and l_receiptdate >= date '1994-01-01' and l_receiptdate < date '1995-01-01'
            group by l_shipmode order by l_shipmode""",
        "q13": """
            with counts as (
                select c_custkey, count(o_orderkey) as c_count
                from customer left join orders on c_custkey = o_custkey and o_comment not like '%special%requests%'
                group by c_custkey)
            select c_count, count(*) as custdist from counts group by c_count order by custdist desc, c_count desc""",
        "q14": f"""
            select 100.00 * sum(case when p_type like 'PROMO%' then {_REVENUE} else 0 end) / sum({_REVENUE}) as promo
            from lineitem join part on l_partkey = p_partkey
            where l_shipdate >= date '1995-09-01' and l_shipdate < date '1995-10-01'""",
        "q15": f"""
            with revenues as (
                select l_suppkey as supplier_no, sum({_REVENUE}) as total from lineitem
                where l_shipdate >= date '1996-01-01' and l_shipdate < date '1996-04-01' group by l_suppkey)
            select s_suppkey, s_name, s_address, s_phone, total from supplier join revenues on s_suppkey = supplier_no
            where total = (select max(total) from revenues) order by s_suppkey""",
        "q16": """
            select p_brand, p_type, p_size, count(distinct ps_suppkey) as supplier_cnt
            from partsupp join part on p_partkey = ps_partkey
            where p_brand <> 'Brand#45' and p_type not like 'MEDIUM POLISHED%'
                and p_size in (49, 14, 23, 45, 19, 3, 36, 9)
                and ps_suppkey not in (
                    select s_suppkey from supplier where s_comment like '%Customer%Complaints%')
            group by p_brand, p_type, p_size order by supplier_cnt desc, p_brand, p_type, p_size""",
        "q17": """
            with means as (
                select l_partkey as part_key, 0.2 * avg(l_quantity) as fifth from lineitem group by l_partkey)
            select sum(l_extendedprice) / 7.0 as avg_yearly
            from lineitem join part on p_partkey = l_partkey join means on part_key = p_partkey
            where p_brand = 'Brand#23' and p_container = 'MED BOX' and l_quantity < fifth""",
        "q18": """
            select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) as quantity
            from customer join orders on c_custkey = o_custkey join lineitem on o_orderkey = l_orderkey
            where o_orderkey in (select l_orderkey from lineitem group by l_orderkey having sum(l_quantity) > 300)
            group by c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
            order by o_totalprice desc, o_orderdate, o_orderkey limit 100""",
        "q19": f"""
            select sum({_REVENUE}) as revenue from lineitem join part on p_partkey = l_partkey
            where l_shipinstruct = 'DELIVER IN PERSON' and l_shipmode in ('AIR', 'AIR REG') and (
                (p_brand = 'Brand#12' and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
                    and l_quantity between 1 and 11 and p_size between 1 and 5)
                or (p_brand = 'Brand#23' and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
                    and l_quantity between 10 and 20 and p_size between 1 and 10)
                or (p_brand = 'Brand#34' and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
                    and l_quantity between 20 and 30 and p_size between 1 and 15))""",
        "q20": """
            with shipped as (
                select l_partkey as part_key, l_suppkey as supp_key, 0.5 * sum(l_quantity) as half from lineitem
                where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
                group by l_partkey, l_suppkey)
            select s_name, s_address from supplier join nation on s_nationkey = n_nationkey
            where n_name = 'CANADA' and s_suppkey in (
                select ps_suppkey from partsupp join shipped on part_key = ps_partkey and supp_key = ps_suppkey
                where ps_availqty > half and ps_partkey in (select p_partkey from part where p_name like 'forest%'))
            order by s_name""",
        "q21": """
            select s_name, count(*) as numwait
            from supplier join lineitem l1 on s_suppkey = l1.l_suppkey join orders on o_orderkey = l1.l_orderkey
                join nation on s_nationkey = n_nationkey
            where o_orderstatus = 'F' and l1.l_receiptdate > l1.l_commitdate and n_name = 'SAUDI ARABIA'
                and exists (select 1 from lineitem l2
                    where l2.l_orderkey = l1.l_orderkey and l2.l_suppkey <> l1.l_suppkey)
                and not exists (select 1 from lineitem l3 where l3.l_orderkey = l1.l_orderkey
                    and l3.l_suppkey <> l1.l_suppkey and l3.l_receiptdate > l3.l_commitdate)
            group by s_name order by numwait desc, s_name limit 100""",
        "q22": """
            with asked as (
                select substring(c_phone, 1, 2) as code, c_acctbal, c_custkey from customer
                where substring(c_phone, 1, 2) in ('13', '31', '23', '29', '30', '18', '17'))
            select code, count(*) as numcust, sum(c_acctbal) as totacctbal from asked
            where c_acctbal > (select avg(c_acctbal) from asked where c_acctbal > 0)
                and not exists (select 1 from orders where o_custkey = c_custkey)
            group by code order by code""",
    }
