-- Nodes with hardware or driver faults of the last 30 days. A fault counts 1 in the score when it begins, and half as much
-- after each seven days. The parts are counts.
WITH counted AS (
    SELECT
        e.node AS node,
        count(*) AS faults,
        count(DISTINCT e.id) AS kinds,
        sum(e.again) AS repeats,
        sum(CASE WHEN e.severity = 'drain' THEN 1 ELSE 0 END) AS drains,
        sum(CASE WHEN e.id LIKE 'xid.%' OR e.id LIKE 'sxid.%' THEN 1 ELSE 0 END) AS xids,
        sum(pow(0.5, (s.now_s - e.seconds) / 604800.0)) AS score
    FROM episodes AS e
    CROSS JOIN settings AS s
    GROUP BY e.node
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
    c.score AS score
FROM counted AS c
INNER JOIN latest AS l ON l.node = c.node
LEFT JOIN boots AS b ON b.node = c.node
