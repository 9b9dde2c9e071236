-- Counters that grow steadily: the Theil-Sen slope an hour over the steps of the window, from the rate's limit on.
-- A counter that begins anew at more than 4 of 10 captures has no slope.
WITH candidates AS (
    SELECT node, item, key
    FROM steps
    GROUP BY node, item, key
    HAVING sum(growth) > 0 AND count(*) >= 5 AND count(*) >= 0.6 * (max(captures) - 1)
),

sums AS (
    SELECT
        t.node AS node,
        t.item AS item,
        t.key AS key,
        sum(t.hours) OVER (PARTITION BY t.node, t.item, t.key ORDER BY t.seconds) AS hours,
        sum(t.growth) OVER (PARTITION BY t.node, t.item, t.key ORDER BY t.seconds) AS growth,
        row_number() OVER (PARTITION BY t.node, t.item, t.key ORDER BY t.seconds DESC) AS age
    FROM steps AS t
    INNER JOIN candidates AS c ON c.node = t.node AND c.item = t.item AND c.key = t.key
),

slopes AS (
    SELECT
        a.node AS node,
        a.item AS item,
        a.key AS key,
        middle((b.growth - a.growth) / (b.hours - a.hours)) AS slope,
        max(b.growth) - min(a.growth) AS growth,
        max(b.hours) - min(a.hours) AS hours
    FROM sums AS a
    INNER JOIN sums AS b ON b.node = a.node AND b.item = a.item AND b.key = a.key
    WHERE a.hours < b.hours AND a.age <= 48 AND b.age <= 48
    GROUP BY a.node, a.item, a.key
)

SELECT w.node AS node, l.class AS class, w.item AS item, w.key AS key, w.slope AS slope, w.growth AS growth, w.hours AS hours
FROM slopes AS w
INNER JOIN rates AS r ON r.key = w.key
INNER JOIN latest AS l ON l.node = w.node
WHERE l.known = 1 AND w.slope >= r.floor_rate
