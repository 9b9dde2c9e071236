-- Growth of counters between two captures that follow each other. No step where a counter began anew: at another
-- boot (but for counters that a board stores), or where it is lower than before (driver loaded again, wrap, new board).
-- It reads what the files have of these counters, and not every capture whole (view numbers).
-- stored
WITH held AS (
    SELECT c.node AS node, c.time AS time, b.item AS item, b.key AS key, b.value AS value
    FROM growing AS g
    INNER JOIN watched_numbers AS b ON b.node = g.node AND b.item = g.item AND b.key = g.key
    INNER JOIN stored_captures AS c ON c.class = b.class AND c.node = b.node AND c.held = b.time
    LEFT JOIN replaced_watched AS k ON k.class = c.class AND k.node = c.node AND k.time = c.time AND k.key = b.key
    WHERE k.key IS NULL
    UNION ALL
    SELECT r.node AS node, r.time AS time, r.item AS item, r.key AS key, r.value AS value
    FROM replacing_watched AS r
    INNER JOIN growing AS g ON g.node = r.node AND g.item = r.item AND g.key = r.key
),

points AS (
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
    FROM held AS n
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
