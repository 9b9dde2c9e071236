-- Repeat offenders of the last 30 days. The score is the sum of its parts, each with its weight.
WITH counted AS (
    SELECT
        node,
        count(*) AS faults,
        count(DISTINCT id) AS kinds,
        sum(again) AS repeats,
        sum(CASE WHEN severity = 'drain' THEN 1 ELSE 0 END) AS drains,
        sum(CASE WHEN id LIKE 'xid.%' OR id LIKE 'sxid.%' THEN 1 ELSE 0 END) AS xids
    FROM episodes
    GROUP BY node
),

boots AS (
    SELECT c.node AS node, count(DISTINCT c.boot_id) - 1 AS boots
    FROM captures AS c
    INNER JOIN counted AS t ON t.node = c.node
    CROSS JOIN settings AS s
    WHERE c.seconds >= s.month_s
    GROUP BY c.node
)

SELECT
    c.node AS node,
    l.class AS class,
    l.state AS state,
    c.faults AS faults,
    c.drains AS drains,
    c.repeats AS repeats,
    c.kinds AS kinds,
    c.xids AS xids,
    coalesce(b.boots, 0) AS boots,
    CAST(
        2 * c.faults + c.drains + 2 * c.repeats + 0.5 * c.kinds + 0.5 * c.xids + 0.25 * coalesce(b.boots, 0) AS DOUBLE
    ) AS score
FROM counted AS c
INNER JOIN latest AS l ON l.node = c.node
LEFT JOIN boots AS b ON b.node = c.node
WHERE c.faults > 1
