-- Growth of counters between two captures that follow each other. No step where a counter began anew: at another
-- boot (but for counters that a board stores), or where it is lower than before (driver loaded again, wrap, new board).
WITH points AS (
    SELECT
        n.node AS node,
        n.item AS item,
        n.key AS key,
        c.seconds AS seconds,
        c.boot_id AS boot_id,
        n.value AS value,
        r.stored AS stored,
        lag(n.value) OVER (PARTITION BY n.node, n.item, n.key ORDER BY c.seconds) AS old_value,
        lag(c.seconds) OVER (PARTITION BY n.node, n.item, n.key ORDER BY c.seconds) AS old_seconds,
        lag(c.boot_id) OVER (PARTITION BY n.node, n.item, n.key ORDER BY c.seconds) AS old_boot_id,
        row_number() OVER (PARTITION BY n.node, n.item, n.key ORDER BY c.seconds) AS place,
        count(*) OVER (PARTITION BY n.node, n.item, n.key) AS captures
    FROM numbers AS n
    INNER JOIN growing AS g ON g.node = n.node AND g.item = n.item AND g.key = n.key
    INNER JOIN rates AS r ON r.key = n.key
    INNER JOIN captures AS c ON c.node = n.node AND c.time = n.time
    CROSS JOIN settings AS s
    WHERE c.seconds >= s.trend_s
)

SELECT node, item, key, captures, seconds, (seconds - old_seconds) / 3600.0 AS hours, value - old_value AS growth
FROM points
WHERE
    place > 1
    AND seconds > old_seconds
    AND value >= old_value
    AND (stored = 1 OR coalesce(boot_id, '') = coalesce(old_boot_id, ''))
